"""Finds and ends the processes below this one, those included that have left their group, session or parent.

Guarantees: after `become_reaper`, a process whose parent ends becomes a child of this one, so that `descendants` has
every process that was started below; `end_all` returns when there is none left but those that cannot be killed: the
kernel holds them, or they are another user's. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_LOOK = timedelta(seconds=0.05)
_LAST_SECONDS = 10.0  # for SIGKILL to work
_ENDED = "ZX"
_CGROUPS = Path("/sys/fs/cgroup")


def become_reaper() -> None:
    """Let every orphan below become a child of this process.

    Raises:
        OSError: If the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(pid: int, besides: Collection[int] = ()) -> list[int]:
    """Return the processes below ``pid`` that have not ended, parents first; none of ``besides`` or below those."""
    children: dict[int, list[int]] = {}
    states = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (process := status(int(folder.name))) is not None:
            states[int(folder.name)] = process[0]
            children.setdefault(process[1], []).append(int(folder.name))
    below: list[int] = []
    ahead = [pid]
    while ahead:
        nearest = sorted(child for child in children.get(ahead.pop(0), []) if child not in besides)
        ahead += nearest
        below += nearest
    return [child for child in below if states[child] not in _ENDED]


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


def group_of(pid: int) -> list[int]:
    """Return the processes below this one that are in the process group of ``pid``."""
    group = []
    for process in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            group += [process] if os.getpgid(process) == pid else []
    return group


def watch_end(pid: int) -> int | None:
    """Return a descriptor that can be read when the process ends; None where the kernel or a filter refuses one.

    Raises:
        ProcessLookupError: If there is no such process.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError as error:  # before Linux 5.3, or by a filter of system calls in a container
        if status(pid) is None:
            raise ProcessLookupError(f"process {pid} has ended") from error
        return None


def can_be_read(descriptor: int) -> bool:
    """Return whether there is something to read; of what `watch_end` returns, whether the process has ended."""
    poller = select.poll()  # `select.select` takes no descriptor above 1023
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))


def has_ended(pid: int, descriptor: int | None) -> bool:
    """Return whether a process has ended, by what `watch_end` returned for it."""
    if descriptor is not None:
        return can_be_read(descriptor)
    process = status(pid)
    return process is None or process[0] in _ENDED


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes; one that has ended, or is another user's, gets none."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap(besides: int | None = None) -> None:
    """Take the exit codes of adopted children, but not that of ``besides``."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == besides:
                return  # the others follow once it is taken
            os.waitpid(ended.si_pid, os.WNOHANG)


def end_all(
    grace: timedelta,
    *,
    monotonic: Callable[[], float],
    wait: Callable[[timedelta], bool],
    keep: int | None = None,
    spared: Collection[int] = (),
    told: Collection[int] = (),
) -> list[int]:
    """End every process below this one: SIGTERM, and after ``grace`` SIGKILL; return those that are left.

    Args:
        grace: Time to end by themselves; no SIGTERM where there is none.
        monotonic: Gives seconds.
        wait: Waits; returns whether the grace is to end now.
        keep: A child whose exit code is somebody else's to take.
        spared: Processes that are left alone, with those below them.
        told: Processes that were asked to end already: a second SIGTERM would end their saves.
    """
    if grace > timedelta(0):
        left = descendants(os.getpid(), spared)
        send([pid for pid in left if pid not in told], signal.SIGTERM)
        send(left, signal.SIGCONT)
        until = monotonic() + grace.total_seconds()
        while monotonic() < until and descendants(os.getpid(), spared):
            if wait(_LOOK):
                break
            reap(keep)
    until = monotonic() + _LAST_SECONDS
    while (left := descendants(os.getpid(), spared)) and monotonic() < until:
        send(left, signal.SIGKILL)
        wait(_LOOK)
        reap(keep)
    reap(keep)
    return left


def oom_kills(root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return how many processes of this control group the kernel has killed for want of memory; None if unknown.

    Counted is the innermost readable group, of version 2 or 1.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files = [root / path.lstrip("/") / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            folder = root / "memory"
            files = [folder / path.lstrip("/") / "memory.oom_control", folder / "memory.oom_control"]
        else:
            continue
        for file in files:
            count = _oom_count(file)
            if count is not None:
                return count
    return None


def _oom_count(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    words = (line.split() for line in lines)
    counts = [pair[1] for pair in words if len(pair) == 2 and pair[0] == "oom_kill"]
    return int(counts[0]) if counts and counts[0].isdigit() else None
