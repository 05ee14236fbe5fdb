"""How times, numbers and tables are written for people. Pure, but for the width of the terminal. Any thread."""

from __future__ import annotations

import os
from datetime import datetime, timezone

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

_WIDE = 200  # columns, where no terminal sets a limit: what is piped on is not broken into lines
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def console_for_tables() -> Console:
    """Stdout, as wide as the terminal; wide enough for any table where it is none."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDE
    return console


def plain_table(title: str = "", caption: str | None = None) -> Table:
    """A table that spends few columns on lines; what it is given is shown as it is, in whatever brackets."""
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
    """``text`` with what a terminal would obey instead of show written as an escape: names come out of files."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


def size(size_bytes: int) -> str:
    """Such as "12.3 MB"."""
    return decimal(size_bytes).replace("bytes", "B").replace("byte", "B")


def ago(created_at: str, now: datetime) -> str:
    """How long before ``now`` that was, in its largest unit: "5 min"; "-" where it is no time, or still to come."""
    try:
        then = datetime.fromisoformat(created_at)
    except ValueError:
        return "-"
    if then.tzinfo is None:
        then = then.replace(tzinfo=timezone.utc)
    seconds = int((now - then).total_seconds())
    if seconds < 0:
        return "-"  # two machines' clocks differ
    length, unit = next((one for one in _UNITS if seconds >= one[0]), _UNITS[-1])
    return f"{seconds // length} {unit}"
