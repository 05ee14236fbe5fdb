"""Takes the Python stacks of processes that hang.

Guarantees: a signal goes only to a process that has a handler for it, so that none dies of it. What a process does not
show in time is left out. One thread.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ckptkit.format.events import MAX_STACK_LINES, plain_line
from ckptkit.manager.heartbeat.record import STACKS_ENDING, Record
from ckptkit.manager.heartbeat.writer import STACKS_SIGNAL
from ckptkit.tools.supervisor.processes import catches, descendants, send, status

_WITHIN = timedelta(seconds=3)
_LOOK = timedelta(seconds=0.1)
_PY_SPY_SECONDS = 15
_MOST_WORKERS = 8  # of one rank
_MOST_BYTES = 1 << 18
_NOTHING = Path(os.devnull)


@dataclass(frozen=True)
class Stack:
    """Holds the stacks of one process.

    Attributes:
        rank: Its rank, or that of the rank it belongs to; None if unknown.
        pid: The process.
        lines: As `faulthandler` or py-spy wrote them, or why there are none.
    """

    rank: int | None
    pid: int
    lines: Sequence[str]


def take_stacks(
    records: Sequence[Record],
    files: Mapping[str, Path],
    *,
    seen_as: Mapping[int, int],
    monotonic: Callable[[], float],
    wait: Callable[[timedelta], None],
) -> list[Stack]:
    """Return the stacks of each rank and of its data workers.

    Args:
        records: The ranks.
        files: Where they write, by name.
        seen_as: The number here of each, by what it calls itself.
        monotonic: Gives seconds.
        wait: Waits.
    """
    found = []
    for record in records:
        rank = record.rank if record.rank >= 0 else None
        file = files.get(f"{record.pid}{STACKS_ENDING}", _NOTHING)
        own = seen_as.get(record.pid)
        for pid in [own, *descendants(own)[:_MOST_WORKERS]] if own is not None else []:
            lines = _lines_of(pid, file, monotonic, wait)
            if lines:
                found.append(Stack(rank, pid, lines))
    return found


def crash_of(pid: int, files: Mapping[str, Path]) -> Sequence[str]:
    """Return what `faulthandler` wrote when the process crashed, if it did."""
    lines = _read(files.get(f"{pid}{STACKS_ENDING}", _NOTHING), 0).splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    return _bounded(lines[begin:]) if begin is not None else []


def _lines_of(pid: int, file: Path, monotonic: Callable[[], float], wait: Callable[[timedelta], None]) -> Sequence[str]:
    found = status(pid)
    if found is None:
        return []
    if found[0] in "Tt":
        return ["the process is stopped by a signal, so it cannot show its stacks"]
    spied = _py_spy(pid)
    if spied:
        return spied
    if file == _NOTHING or not catches(pid, STACKS_SIGNAL):
        return []
    begin = file.stat().st_size
    send([pid], STACKS_SIGNAL)
    text, until = "", monotonic() + _WITHIN.total_seconds()
    while monotonic() < until:
        wait(_LOOK)
        before, text = text, _read(file, begin)
        if text and text == before:
            break
    return _bounded(text.splitlines()) or ["the process did not answer: it is held by the kernel"]


def _py_spy(pid: int) -> Sequence[str]:
    program = shutil.which("py-spy")
    if program is None:
        return []
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PY_SPY_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return []
    return _bounded(done.stdout.decode(errors="replace").splitlines()) if done.returncode == 0 else []


def _read(file: Path, begin: int) -> str:
    with file.open("rb") as opened:
        opened.seek(begin)
        return opened.read(_MOST_BYTES).decode(errors="replace")


def _bounded(lines: Sequence[str]) -> list[str]:
    # Not plain_line: the indentation tells the frames from the threads.
    return [plain_line(f"|{line}")[1:] for line in lines[:MAX_STACK_LINES]]
