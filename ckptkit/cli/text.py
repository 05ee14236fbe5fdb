"""Formats times, numbers and tables for people; depends on nothing but the terminal's width. Any thread may call it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from ckptkit.core.text import time_in

_HALF = re.compile("[\ud800-\udfff]")  # half of a pair: not valid Unicode, and many parsers refuse the document
_WIDE = 200  # columns without a terminal, so that piped tables are not wrapped
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def console_for_tables() -> Console:
    """Return a console on stdout, as wide as the terminal, or wide enough for any table without one."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDE
    return console


def plain_table(title: str = "", caption: str | None = None) -> Table:
    """Return a table with few ruled lines; shows ``title`` as it is, brackets included."""
    return Table(
        title=Text(title) if title else None,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )


def visible(text: str) -> str:
    """Return ``text`` with unprintable characters escaped: names come from files and could control the terminal."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


def print_line(console: Console, text: str, style: str | None = None) -> None:
    """Print ``text`` as it is, made `visible`: brackets and numbers get no style, and long lines are not wrapped."""
    console.print(visible(text), style=style, markup=False, highlight=False, soft_wrap=True)


def print_json(document: object, default: Callable[[object], object] | None = None) -> None:
    """Print ``document`` as JSON, in ASCII, with escapes for what is not valid Unicode, such as names of old files."""
    text = json.dumps(document, default=default, ensure_ascii=False)
    print(json.dumps(json.loads(_HALF.sub(lambda half: f"\\\\u{ord(half[0]):x}", text))))


def size(size_bytes: int) -> str:
    """Return a size such as "12.3 MB"."""
    return decimal(size_bytes).replace("bytes", "B").replace("byte", "B")


def ago(created_at: str, now: datetime) -> str:
    """Return the age at ``now`` in its largest unit, such as "5 min"; "-" for an invalid or a future time."""
    then = time_in(created_at)
    seconds = int((now - then).total_seconds()) if then is not None else -1
    if seconds < 0:
        return "-"  # the clocks of two machines differ
    length, unit = next((one for one in _UNITS if seconds >= one[0]), _UNITS[-1])
    return f"{seconds // length} {unit}"
