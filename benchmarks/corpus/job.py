"""Reads the jobs: small scripts that train, each with its truth in the comments that it begins with.

    # truth: differs          what a resume is without help, one of `TRUTHS`
    # class: attribute        where the state lives that training changes, one of `CLASSES`
    # head: regression_8_rows the file of `heads` that the job goes on from; without this line it is whole
    # What is lost, and why.

An empty line ends the comments. What may be named is state that training changes, though this kill leaves it exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

JOBS = Path(__file__).with_name("jobs")
HEADS = Path(__file__).with_name("heads")
TRUTHS = ("differs", "exact", "exact, may be named", "refused", "refused or exact")
CLASSES = (
    *("attribute", "callback", "variable", "global", "closure", "iterator"),
    *("file", "outside", "random", "data", "other"),  # outside: another thread or process, or the environment
)


@dataclass(frozen=True)
class Job:
    """A training: the name of its file, its truth, the class of its state, and the whole script."""

    name: str
    truth: str
    place: str
    source: str


def read(path: Path) -> Job:
    """Return the job of a file."""
    top, _, body = path.read_text(encoding="utf-8").partition("\n\n")
    comments = [line.removeprefix("# ").partition(": ") for line in top.splitlines()]
    fields = {key: value for key, _, value in comments if key in ("truth", "class", "head")}
    about = ["# " + "".join(comment) for comment in comments if comment[0] not in fields]
    head = (HEADS / f"{fields['head']}.py").read_text(encoding="utf-8") if "head" in fields else ""
    source = "\n".join([f"# {fields['truth']}", *about, head + body])
    return Job(path.stem, fields["truth"], fields["class"], source)


def all_jobs() -> list[Job]:
    """Return all jobs by name."""
    return [read(path) for path in sorted(JOBS.glob("*.py"))]
