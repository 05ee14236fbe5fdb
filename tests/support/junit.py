"""Reads JUnit files that this process wrote."""

from pathlib import Path
from xml.etree import ElementTree


def read_junit(path: Path | str) -> ElementTree.Element:
    return ElementTree.parse(path).getroot()  # noqa: S314 - the test wrote it


def cases_of(path: Path | str) -> list[tuple[str, str | None, str]]:
    """The name of each case, what became of it (None if it passed), and the message."""
    found = read_junit(path).findall("testsuite/testcase")
    outcomes = [next(iter(one), None) for one in found]
    return [
        (one.attrib["name"], None if end is None else end.tag, "" if end is None else end.attrib["message"])
        for one, end in zip(found, outcomes, strict=True)
    ]
