"""Tells whether the process that has a run may still be alive, before another one takes the run over."""

from __future__ import annotations

import os
import re
import socket
import time
from datetime import datetime, timedelta
from pathlib import Path

from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.format.events import Ended, LifeEnded
from ckptkit.run.event_log import read_segments, segments_of
from ckptkit.run.index import Index
from ckptkit.storage import Storage

_RECENT = timedelta(minutes=10)  # events are stored every five minutes at the latest, if something happens
_PROCESS = re.compile(r"(.+) \(pid ([0-9]{1,9})\)")


def this_process() -> str:
    """Return the host and the number of this process, as attempts record it and `sign_of_life` reads it."""
    return f"{socket.gethostname()} (pid {os.getpid()})"


def sign_of_life(storage: Storage, index: Index, me: str, now: datetime) -> str | None:
    """Return whose the run is, if its process may be alive; empty if nothing tells; None if it has ended."""
    number = max(index.attempts, default=0)
    if not number:
        return None
    try:
        last = read_segments(storage, index, segments_of(storage, number)[-1:])
        events = [event for segment in last.segments for event in segment.events]
        if any(isinstance(event, Ended | LifeEnded) for event in events):
            return None
        document = index.document(number)
        began_at = datetime.fromisoformat(document.created_at)
        age = max(now - datetime.fromisoformat(events[-1].at if events else document.created_at), timedelta())
    except (CorruptCheckpointError, StorageError, ValueError, TypeError):
        return ""  # no start depends on events
    theirs, mine = _PROCESS.fullmatch(document.host), _PROCESS.fullmatch(me)
    if theirs is None or mine is None:
        return ""
    is_here = theirs[1] == mine[1]
    if is_here and (theirs[2] == mine[2] or not _runs(int(theirs[2]), now - began_at)):
        return None
    seconds = int(age.total_seconds())
    return (
        f"attempt {number} on {document.host}, with a record {seconds} s ago"
        if is_here or (events and age < _RECENT)
        else ""
    )


def _runs(pid: int, since: timedelta) -> bool:
    """Return whether a process of this number has run for longer than ``since``: a younger one is another process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return fields[0] not in (b"Z", b"X") and age > since.total_seconds() - 1
