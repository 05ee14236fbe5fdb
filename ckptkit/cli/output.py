"""Prints what a command has to say: lines, tables, one JSON document, and progress on stderr. For any thread."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from typing_extensions import Self

from ckptkit.core.text import rough_span, size, time_in
from ckptkit.format.layout import CheckpointName
from ckptkit.tools.watch import CheckpointWatch

_HALF = re.compile("[\ud800-\udfff]")  # half of a pair: not valid Unicode, and many parsers refuse the document
_WIDE = 200  # columns without a terminal, so that piped tables are not wrapped
_NARROWEST = 16  # of a column whose texts are folded
_TOGETHER = re.compile(r"(?<=\d) (?=[^\W\d]|->)|(?<=->) (?=\d)")  # before a unit, and in 1 -> 2
_WORD = re.compile(r"[^ ]* ?")
_SHORTER = re.compile(r"(?:[^ /.]|\.(?=\d))*[ /.]?")  # a part of a path, or of a dotted name
_HANGING = re.compile(r" *(?:.{,12}?  +)?")  # what continues below the text of a line: its indent, and its label
Part = str | tuple[str, str]  # a line, or a line with its style


def _width_of(console: Console) -> int:
    """Return the width of the terminal, or a width for any line and table without one."""
    return console.width if console.is_terminal or "COLUMNS" in os.environ else sys.maxsize


def _folded(text: str, width: int, pieces: re.Pattern[str] = _WORD) -> list[str]:
    """Break ``text`` between ``pieces`` into lines, and never between a number and its unit."""
    lines = [""]
    for piece in pieces.findall(_TOGETHER.sub("\xa0", text)):
        if piece and lines[-1] and cell_len(lines[-1] + piece.rstrip(" ")) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip(" ").replace("\xa0", " ") for line in lines]


def table_of(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, spare: Sequence[str] = (), styles: Sequence[str] = ()
) -> Iterator[Part]:
    """Yield the lines of a table; every text is made `visible`.

    In ``columns``, what stands at the right, such as numbers, begins with ``>``. What ``spare`` names is left out, in
    this order, until the rest fits into the terminal. ``styles`` has the style of each row.
    """
    table = [[name.lstrip(">") for name in columns], *(list(map(visible, row)) for row in rows)]
    left_out: list[str] = []
    width = min(_WIDE, _width_of(Console()))
    while True:
        shown = [at for at, name in enumerate(table[0]) if name not in left_out]
        widths = {at: max(cell_len(line) for row in table for line in row[at].split("\n")) for at in shown}
        excess = sum(widths.values()) + 2 * (len(shown) - 1) - width
        if excess <= 0 or len(left_out) == len(spare):
            break
        left_out.append(spare[len(left_out)])
    if excess > 0:
        widest = max((at for at in shown if not columns[at].startswith(">")), key=widths.__getitem__)
        widths[widest] = max(_NARROWEST, widths[widest] - excess)
    for number, row in enumerate(table):
        cells = {
            at: [line for text in row[at].split("\n") for line in _folded(text, widths[at], _SHORTER)] for at in shown
        }
        for level in range(max(map(len, cells.values()))):
            texts = ((at, lines[level] if level < len(lines) else "") for at, lines in cells.items())
            padded = (
                f"{' ' * (widths[at] - cell_len(text))}{text}"
                if columns[at].startswith(">")
                else f"{text}{' ' * (widths[at] - cell_len(text))}"
                for at, text in texts
            )
            line = "  ".join(padded).rstrip()
            yield (line, "bold" if number == 0 else styles[number - 1] if styles else "")
        if number == 0:
            yield "─" * (sum(widths.values()) + 2 * (len(shown) - 1))
    if left_out:
        names = ", ".join(left_out).replace("/\n", "/").replace("-\n", "-").replace("\n", " ")
        yield f"not shown in {width} columns: {names}"


def visible(text: str) -> str:
    """Return ``text`` with unprintable characters escaped: names come from files and could control the terminal."""
    return "".join(
        character if character.isprintable() or character == "\n" else repr(character)[1:-1] for character in text
    )


def print_line(text: str, style: str | None = None, *, console: Console | None = None) -> None:
    """Print ``text``, made `visible`: brackets and numbers get no style. In a terminal, lines break between words."""
    console = console or Console()
    for line in visible(text).split("\n"):
        hanging = len(_HANGING.match(line)[0])  # type: ignore[index]  # it matches anything
        first, *rest = _folded(line[hanging:], _width_of(console) - hanging)
        for part in (f"{line[:hanging]}{first}", *(f"{' ' * hanging}{more}" for more in rest)):
            console.print(part, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_result(document: object, parts: Iterable[Part], *, as_json: bool) -> None:
    """Print what a command found: as one JSON document in ASCII, or its parts for people, in order.

    In the document, what is not valid Unicode, such as the name of an old file, is escaped.
    """
    if as_json:
        text = json.dumps(plain(document), ensure_ascii=False)
        print(json.dumps(json.loads(_HALF.sub(lambda half: f"\\\\u{ord(half[0]):x}", text))))
    else:
        print_parts(parts)


def print_parts(parts: Iterable[Part]) -> None:
    for part in parts:
        print_line(*((part,) if isinstance(part, str) else part))


def plain(value: object) -> Any:
    """Return ``value`` as JSON has it: fields of objects by name, times in ISO 8601, and null for no finite number."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    elif isinstance(value, CheckpointName):
        value = str(value)
    elif isinstance(value, datetime):
        value = value.isoformat()
    elif isinstance(value, float) and not math.isfinite(value):
        value = None
    elif dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def ago(created_at: str, now: datetime) -> str:
    """Return the age at ``now`` in its largest unit, such as "5 min"; "-" for an invalid or a future time."""
    then = time_in(created_at)
    return "-" if then is None or then > now else rough_span(int((now - then).total_seconds()))


class _SpeedColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("?" if speed is None else f"{size(speed)}/s", style="progress.data.speed")


def bar_of_bytes(console: Console | None = None) -> Progress:
    """Return a bar with amount, speed and time left; silent without a terminal."""
    return _bar(console, True, DownloadColumn(binary_units=True), _SpeedColumn(), TimeRemainingColumn())


def bar_of_steps(*, transient: bool) -> Progress:
    """Return a bar with a count and the time that it took; silent without a terminal."""
    return _bar(None, transient, MofNCompleteColumn(), TimeElapsedColumn())


def _bar(console: Console | None, transient: bool, *columns: object) -> Progress:
    console = console or Console(stderr=True)
    shown: Any = (TextColumn("{task.description}"), BarColumn(), *columns)
    return Progress(*shown, console=console, transient=transient, disable=not console.is_terminal)


class CheckpointBar(CheckpointWatch):
    """Shows how many checkpoints of a run are done; without a terminal, prints a line for each instead.

    ``ends`` has, by outcome, the words before the name of a checkpoint with it. Any thread may advance it.
    """

    def __init__(self, first: str, ends: Mapping[str, str], console: Console | None = None) -> None:
        self._bar = bar_of_bytes(console)
        self._task = self._bar.add_task(first, total=None)
        self._ends = ends
        self._outcomes: Counter[str] = Counter()
        self._planned = 0
        self._lock = threading.Lock()
        self.read_bytes = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def plan(self, checkpoints: int, size_bytes: int) -> None:
        self._planned = checkpoints
        self._bar.update(self._task, total=size_bytes, description=self._describe())

    def advance(self, size_bytes: int) -> None:
        with self._lock:
            self.read_bytes += size_bytes
        self._bar.advance(self._task, size_bytes)

    def end(self, name: str, outcome: str) -> None:
        with self._lock:
            self._outcomes[outcome] += 1
            described = self._describe()
            self._bar.update(self._task, description=described)
            if not self._bar.console.is_terminal:
                print_line(f"{self._ends[outcome]} {name} ({described})", console=self._bar.console)

    def _describe(self) -> str:
        corrupt = f", {self._outcomes['corrupt']} corrupt" if self._outcomes["corrupt"] else ""
        return f"{self._outcomes.total()} of {self._planned} checkpoints{corrupt}"
