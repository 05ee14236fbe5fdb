"""Finds and ends the processes below this one, those included that have left their group, session or parent.

Guarantees: after `become_reaper`, a process whose parent ends becomes a child of this one, so that `descendants` has
every process that was started below; `end_all` returns when there is none left but those that cannot be killed yet,
because the kernel holds them. Linux only. One thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_LOOK = timedelta(seconds=0.05)
_LAST = timedelta(seconds=10)  # for SIGKILL to work


def become_reaper() -> None:
    """Let every orphan below become a child of this process.

    Raises:
        OSError: If the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(pid: int) -> list[int]:
    """Return the processes below ``pid`` that have not ended, parents first."""
    children: dict[int, list[int]] = {}
    states = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (found := status(int(folder.name))) is not None:
            states[int(folder.name)] = found[0]
            children.setdefault(found[1], []).append(int(folder.name))
    below: list[int] = []
    ahead = [pid]
    while ahead:
        nearest = sorted(children.get(ahead.pop(0), []))
        ahead += nearest
        below += nearest
    return [one for one in below if states[one] not in "ZX"]


def status(pid: int) -> tuple[str, int] | None:
    """Return the state of a process, such as ``T``, and its parent; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent = text.rpartition(")")[2].split()[:2]  # the name before it may hold anything
    return state, int(parent)


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler of its own for a signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes; one that has ended is none."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def reap(besides: int | None = None) -> None:
    """Take the exit codes of adopted children, but not that of ``besides``."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == besides:
                return  # the others follow once it is taken
            os.waitpid(ended.si_pid, os.WNOHANG)


def end_all(
    grace: timedelta, *, monotonic: Callable[[], float], wait: Callable[[timedelta], None], keep: int | None = None
) -> list[int]:
    """End every process below this one: SIGTERM, and after ``grace`` SIGKILL; return those that are left.

    Args:
        grace: Time to end by themselves; no SIGTERM where there is none.
        monotonic: Gives seconds.
        wait: Waits; may return early.
        keep: A child whose exit code is somebody else's to take.
    """
    if grace > timedelta(0):
        left = descendants(os.getpid())
        send(left, signal.SIGTERM)
        send(left, signal.SIGCONT)
        until = monotonic() + grace.total_seconds()
        while monotonic() < until and descendants(os.getpid()):
            wait(_LOOK)
            reap(keep)
    until = monotonic() + _LAST.total_seconds()
    while (left := descendants(os.getpid())) and monotonic() < until:
        send(left, signal.SIGKILL)
        wait(_LOOK)
        reap(keep)
    reap(keep)
    return left
