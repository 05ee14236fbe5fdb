"""Writes what was examined as a JUnit XML file, which GitLab, Jenkins and GitHub's actions show with a change.

Guarantees: the file is replaced at once, and what an earlier command left there is removed before anything is examined:
a command that was killed leaves no result. Control characters, which XML cannot hold, are left out; what is not valid
Unicode is escaped. Any thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ckptkit.cli.errors import WrongUsageError
from ckptkit.core.text import escaped

_UNHEARD_OF = re.compile("[^\\t\\n\\r\\x20-\\ufffd\\U00010000-\\U0010ffff]")  # XML 1.0 has no other control characters
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Case:
    """Holds one test case.

    Attributes:
        name: Its name, unlike all others of the file, and the same whenever the same thing is examined.
        seconds: How long it took.
        kind: What became of it.
        message: Why, in a line; empty if it passed.
        text: Why, in full.
    """

    name: str
    seconds: float = 0.0
    kind: Literal["passed", "failure", "error", "skipped"] = "passed"
    message: str = ""
    text: str = ""


def prepare_junit(path: Path) -> None:
    """Make the folder of ``path``, and remove an earlier result.

    Raises:
        WrongUsageError: If something else lies there, such as a script.
        OSError: If that is not possible.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        with path.open("rb") as file:
            if not file.read(5).startswith((b"<?xml", b"<test")):
                raise WrongUsageError(f"--junit: {path} exists and is no XML file; choose another name")
        path.unlink()


def write_junit(path: Path, suite: str, cases: Sequence[Case]) -> None:
    """Write ``cases`` as the one suite of a file.

    Raises:
        OSError: If it cannot be written.
    """
    from xml.etree import ElementTree

    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(one.kind == "failure" for one in cases)),
        "errors": str(sum(one.kind == "error" for one in cases)),
        "skipped": str(sum(one.kind == "skipped" for one in cases)),
        "time": f"{sum(one.seconds for one in cases):.3f}",
    }
    root = ElementTree.Element("testsuites", counts)
    element = ElementTree.SubElement(root, "testsuite", {"name": suite, **counts})
    for one in cases:
        known = {"classname": suite.replace(" ", "."), "name": _plain(one.name), "time": f"{one.seconds:.3f}"}
        case = ElementTree.SubElement(element, "testcase", known)
        if one.kind == "skipped":
            ElementTree.SubElement(case, "skipped", {"message": _plain(one.message)})
        elif one.kind != "passed":
            # Jenkins reads the type, GitLab the text.
            why = {"message": _plain(one.message), "type": _plain(one.message.partition(":")[0])}
            ElementTree.SubElement(case, one.kind, why).text = _plain(one.text or one.message)
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))
    new.replace(path)


def _plain(text: str) -> str:
    return _UNHEARD_OF.sub("", _COLOUR.sub("", escaped(text)))
