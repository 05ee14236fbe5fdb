"""Formats durations, sizes, numbers, lists and paths for people and documents, and reads times. Any thread."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from datetime import datetime, timezone

ENDS = {
    "finished": "finished",
    "complete": "nothing left to train",
    "closed": "no last save",
    "exited": "not closed",
    "failed": "failed",
    "preempted": "preempted",
    "interrupted": "Ctrl-C",
    "overtaken": "overtaken",
}

_SECTION = re.compile(r"^-{9,}\n- ([^:\n]+):.*\n-{9,}\n", re.MULTILINE)
_PYTHON_STACK = "Python Call Stack"
_BAD_FILE = re.compile(r"The corresponding data file is|Invalid image")
_DATA_FILE = re.compile(r"The corresponding data file is: .+?(?=\. Error|$)")

_FRACTION = re.compile(r"(?<=:\d\d)[.,](\d+)")

_MOST_LISTED = 3  # in a message, whose first line says what to do
_MOST_NAMES = 5  # in a sentence


def listed(problems: Sequence[str]) -> str:
    """Format the end of a message, a line for each problem: all with ``CKPTKIT_DEBUG=1``, or else three lines."""
    wants_all = os.environ.get("CKPTKIT_DEBUG", "0") not in ("", "0")
    if not wants_all and len(problems) > _MOST_LISTED:
        shown = problems[: _MOST_LISTED - 1]
        problems = [*shown, f"and {len(problems) - len(shown)} more; CKPTKIT_DEBUG=1 lists them"]
    return "".join(f"\n  {problem}" for problem in problems)


def signal_name(number: int) -> str:
    """Return what people call a signal."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def some(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """Return the first ``names``, at most ``most``, and how many more there are, for a sentence."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def message_of(error: BaseException) -> str:
    """Return what an error says; of an error in a pipeline of MindSpore, what names the data.

    The first line of such an error names nothing. Below it are sections, of which "Python Call Stack" and "Dataset
    Pipeline Error Message" name the error and the file. `test_bad_file_is_named` fails if that changes.
    """
    sections = _sections_of(error)
    stack = sections.get(_PYTHON_STACK, "").strip().splitlines()
    if stack:
        file = _DATA_FILE.search(stack[0])
        return stack[-1] + (f" ({file.group()})" if file is not None else "")
    return sections.get("Dataset Pipeline Error Message", str(error)).strip().removeprefix("[ERROR] ")


def is_about_data(error: BaseException) -> bool:
    """Return whether a pipeline of MindSpore could not process one of its samples."""
    sections = _sections_of(error)
    return _PYTHON_STACK in sections or (bool(sections) and _BAD_FILE.search(message_of(error)) is not None)


def _sections_of(error: BaseException) -> dict[str, str]:
    """Return the sections of an error in a pipeline of MindSpore, by title; none of any other error."""
    parts = _SECTION.split(str(error))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def span(seconds: float | None) -> str:
    """Format a duration in its two largest units."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def rough_span(seconds: float) -> str:
    """Format a duration in its largest unit."""
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(size_bytes: float | None) -> str:
    if size_bytes is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 100 else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} TiB"


def number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def when(at: datetime | None) -> str:
    return "–" if at is None else at.strftime("%Y-%m-%d %H:%M:%S")


def many(count: int, singular: str, more: str | None = None) -> str:
    return f"{count:,} {singular if count == 1 else more or singular + 's'}"


def escaped(text: str) -> str:
    """Return a path with escapes for what is not valid Unicode, so that a document can hold it."""
    return text.encode(errors="backslashreplace").decode()


def time_in(text: str) -> datetime | None:
    """Return the time in a document's text, which is in UTC unless it says otherwise; None if it is not a time.

    Python 3.10 reads neither "Z" nor a fraction of other than three or six digits by itself.
    """
    whole = _FRACTION.sub(lambda match: f".{match[1]:0<6.6}", text.replace("Z", "+00:00"))
    try:
        at = datetime.fromisoformat(whole)
    except ValueError:
        return None
    return at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at
