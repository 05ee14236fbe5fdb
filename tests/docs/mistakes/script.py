"""A user's script with something changed in it, run in a process of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.process import run_python

TRAIN = Path(__file__).with_name("train.py")
MOST_LINES = 4
MOST_CHARACTERS = 360  # of a line: three rows of a terminal that is 120 wide


@dataclass(frozen=True)
class Outcome:
    """How a script ended."""

    code: int
    said: tuple[str, ...]

    @property
    def error(self) -> str:
        """The error that ended it: what stands below Python's traceback, which has a line of the script."""
        assert self.code == 1, self
        assert any(line.startswith('  File "') and 'train.py", line ' in line for line in self.said), self
        first = max(at for at, line in enumerate(self.said) if line.startswith("ckptkit.errors."))
        return _short(self.said[first:])

    def warning(self, words: str) -> str:
        """The one line of ckptkit's log with ``words``, and those that belong to it."""
        (first,) = [at for at, line in enumerate(self.said) if line.startswith("[ckptkit]") and words in line]
        rest = self.said[first + 1 :]
        more = next((count for count, line in enumerate(rest) if not line.startswith("  ")), len(rest))
        return _short(self.said[first : first + 1 + more])


def _short(lines: Sequence[str]) -> str:
    assert len(lines) <= MOST_LINES, lines
    assert all(len(line) <= MOST_CHARACTERS for line in lines), lines
    return "\n".join(lines)


def write(script: Path, *changes: tuple[str, str]) -> Path:
    """Write ``train.py`` as ``script``, with each first text of ``changes`` replaced by the second."""
    text = TRAIN.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    script.write_text(text, encoding="utf-8")
    return script


def run(folder: Path, *changes: tuple[str, str], **environment: str) -> Outcome:
    """Write the script into ``folder`` and run it there."""
    script = write(folder / "train.py", *changes)
    ended = run_python(script.name, folder=folder, environment={"GLOG_v": "3", **environment})
    return Outcome(ended.returncode, tuple(ended.stderr.replace(str(folder), "~").splitlines()))
