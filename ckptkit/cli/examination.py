"""Runs the user's script in scratch roots for ``ckptkit doctor`` and ``ckptkit replay``, and stores what became of it.

SIGTERM or SIGHUP ends the running life like any other error, and a temporary folder is removed. A JUnit file or a card
is replaced at once, and what an earlier command left there is removed before anything is examined: a command that was
killed leaves no result. Main thread only.
"""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import Progress, TaskID

from ckptkit.cli.errors import PROBLEM, UNREACHABLE, WRONG_USAGE, WrongUsageError
from ckptkit.cli.output import bar_of_steps, print_line
from ckptkit.core.text import escaped
from ckptkit.errors import StorageError
from ckptkit.tools.doctor.card import FIRST_WORDS
from ckptkit.tools.doctor.result import FailedLifeError, UnusableScriptError

_NOT_IN_XML = re.compile("[^\\t\\n\\r\\x20-\\ufffd\\U00010000-\\U0010ffff]")  # XML 1.0 has no other control characters
_BEGINS = {  # files that may be replaced
    "--junit": (b"<?xml", b"<test"),
    "--card": (FIRST_WORDS.encode(),),
    "--output": (b"<!doctype html>",),
}
_RESULT_BYTES = 32
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@contextlib.contextmanager
def scratch_lives(keep: str | None, prefix: str) -> Iterator[tuple[Path, Lives]]:
    """Make the folder ``keep``, which stays, or a temporary one, and show the lives that run in it.

    SIGTERM and SIGHUP exit by an exception: unwinding ends the running life. One that is ignored, as under nohup,
    stays so.
    """
    asking = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, _: sys.exit(128 + number)) for number in asking}
    try:
        with contextlib.ExitStack() as stack:
            if keep is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
            else:
                folder = Path(keep).absolute()
                folder.mkdir(parents=True, exist_ok=True)
                if any(folder.iterdir()):
                    raise UnusableScriptError(f"{folder} is not empty; give a new folder")
            yield folder, Lives(stack.enter_context(bar_of_steps(transient=False)))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def report_failure(error: Exception, command: Sequence[str], junit: Path | None, suite: str, case: str) -> int:
    """Print the error of an examination, write it to the file ``junit``, if one is given, and return the exit code."""
    code, message = UNREACHABLE, str(error)
    if isinstance(error, UnusableScriptError):
        code = WRONG_USAGE
    elif isinstance(error, FailedLifeError):
        code = PROBLEM
    elif isinstance(error, FileNotFoundError | PermissionError) and error.filename == command[0]:
        code, message = WRONG_USAGE, f"{command[0]} cannot be started: {error.strerror}"
    else:
        message = f"the scratch folder cannot be used: {error}. Give another one with --keep, or free some space"
    write_junit(junit, suite, [Case(case, 0.0, "error", message.partition("\n")[0], message)])
    console = Console(stderr=True)  # not `print_line`: the message may have its own colours
    console.print(message, style="red", markup=False, emoji=False, highlight=False, soft_wrap=True)
    return code


class Lives:
    """Shows a line and a bar for each life on stderr; if that is no terminal, a line when the life begins."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def begins(self, words: str, steps: int) -> None:
        if not self._progress.console.is_terminal:
            print_line(f"{words}; {steps} micro-steps", console=self._progress.console)
        if self._task is not None:
            self._progress.stop_task(self._task)
        self._task = self._progress.add_task(words, total=steps)

    def stepped(self, steps: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=steps)


@dataclass(frozen=True)
class Case:
    """Is one test case; its name is the same whenever the same thing is examined."""

    name: str
    seconds: float = 0.0
    kind: Literal["passed", "failure", "error", "skipped"] = "passed"
    message: str = ""  # why, in a line
    text: str = ""  # why, in full


def prepare(path: Path | None, option: str) -> None:
    """Make the folder of ``path``, and remove an earlier result."""
    if path is None:
        return
    refuse_other(path, option)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        path.unlink()


def refuse_other(path: Path, option: str) -> None:
    """Refuse to replace what is no earlier result, such as a script or a file of the run."""
    if path.is_dir():
        raise WrongUsageError(f"{option}: {path} is a folder; name a file in it")
    if path.is_file():
        with path.open("rb") as file:
            if not file.read(_RESULT_BYTES).startswith(_BEGINS[option]):
                raise WrongUsageError(f"{option}: {path} exists and is no earlier result; choose another name")


def write_junit(path: Path | None, suite: str, cases: Sequence[Case]) -> None:
    """Write ``cases`` as the one suite of the file, if one is given."""
    from xml.etree import ElementTree

    if path is None:
        return
    kinds = Counter(case.kind for case in cases)
    counts = {
        "tests": str(len(cases)),
        "failures": str(kinds["failure"]),
        "errors": str(kinds["error"]),
        "skipped": str(kinds["skipped"]),
        "time": f"{sum(case.seconds for case in cases):.3f}",
    }
    root = ElementTree.Element("testsuites", counts)
    element = ElementTree.SubElement(root, "testsuite", {"name": suite, **counts})
    for case in cases:
        known = {"classname": suite.replace(" ", "."), "name": _in_xml(case.name), "time": f"{case.seconds:.3f}"}
        child = ElementTree.SubElement(element, "testcase", known)
        if case.kind == "skipped":
            ElementTree.SubElement(child, "skipped", {"message": _in_xml(case.message)})
        elif case.kind != "passed":
            # Jenkins reads the type, GitLab the text.
            why = {"message": _in_xml(case.message), "type": _in_xml(case.message.partition(":")[0])}
            ElementTree.SubElement(child, case.kind, why).text = _in_xml(case.text or case.message)
    replace_file(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def replace_file(path: Path, data: bytes) -> None:
    """Write ``path`` at once."""
    new = path.with_name(f"{path.name}.new")
    try:
        new.write_bytes(data)
        new.replace(path)
    except OSError as error:
        raise StorageError(f"the examination is done, but {path} could not be written: {error.strerror}") from error


def _in_xml(text: str) -> str:
    return _NOT_IN_XML.sub("", _COLOUR.sub("", escaped(text)))
