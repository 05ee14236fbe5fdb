"""Finds and ends the processes below this one, those included that have left their group, session or parent.

Guarantees: after `become_reaper`, a process whose parent ends becomes a child of this one, so that `descendants` has
every process that was started below; `end_all` returns when there is none left but those that cannot be killed: the
kernel holds them, or they are another user's. `Requests` hears the signals that are meant for the job: each is told
once, in order. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from pathlib import Path
from types import FrameType

END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU)  # these ask for the end
HANDLED = (*END_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)

_PR_SET_CHILD_SUBREAPER = 36
_POLL_EVERY = timedelta(seconds=0.05)
_LAST_SECONDS = 10.0  # for SIGKILL to work
_ENDED = "ZX"
_CGROUPS = Path("/sys/fs/cgroup")
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def become_reaper() -> None:
    """Let every orphan below become a child of this process; raise OSError if the kernel refuses."""
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


def watch_end(pid: int) -> int | None:
    """Return a descriptor that can be read when the process ends; None where the kernel or a filter refuses one.

    Raises ProcessLookupError if there is no such process.
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
    asked: Collection[int] = (),
) -> list[int]:
    """End every process below this one: SIGTERM, and after ``grace`` SIGKILL; return those that are left.

    Without a grace there is no SIGTERM; ``wait`` returns whether it is to end now. The exit code of ``keep`` is
    somebody else's to take. Those in ``spared`` are left alone, with those below them. A second SIGTERM would end the
    saves of those in ``asked``.
    """
    if grace > timedelta(0):
        left = descendants(os.getpid(), spared)
        send([pid for pid in left if pid not in asked], signal.SIGTERM)
        send(left, signal.SIGCONT)
        until = monotonic() + grace.total_seconds()
        while monotonic() < until and descendants(os.getpid(), spared):
            if wait(_POLL_EVERY):
                break
            reap(keep)
    until = monotonic() + _LAST_SECONDS
    while (left := descendants(os.getpid(), spared)) and monotonic() < until:
        send(left, signal.SIGKILL)
        wait(_POLL_EVERY)
        reap(keep)
    reap(keep)
    return left


def oom_kills(root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return how many processes of this control group the kernel has killed for want of memory; None if unknown.

    Counted is the innermost readable group, of version 2 or 1.
    """
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in groups:
        if controllers and "memory" not in controllers.split(","):
            continue
        folder, name = (root / "memory", "memory.oom_control") if controllers else (root, "memory.events")
        for file in (folder / path.lstrip("/") / name, folder / name):
            with contextlib.suppress(OSError):
                if (count := _OOM_KILLS.search(file.read_text())) is not None:
                    return int(count[1])
    return None


class Requests:
    """Hears the signals that are meant for the job, while this process waits.

    Each ends a wait at once; one that was ignored before still is. SIGTSTP (Ctrl-Z) suspends the processes below this
    one and then this one, until SIGCONT; once the end was asked for, it does nothing. `close` puts the earlier handlers
    back.
    """

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._came: list[int] = []
        self._former_fd = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._spared = descendants(os.getpid())  # no part of the job, which begins later
        self._is_ending = self._continued = False
        handlers = {
            **dict.fromkeys(HANDLED, self._note),
            signal.SIGTSTP: self._suspend,
            signal.SIGCONT: self._note_continued,
        }
        # One that is ignored stays so, as `nohup` wants it.
        handled = [number for number in handlers if signal.getsignal(number) is not signal.SIG_IGN]
        self._former = {number: signal.signal(number, handlers[number]) for number in handled}

    def take(self) -> list[int]:
        """Return the signals that came since the last call."""
        came, self._came = self._came, []
        return came

    def wait(self, timeout: timedelta, descriptors: Iterable[int] = ()) -> None:
        """Wait until a signal comes, a descriptor can be read or the time is over."""
        if self._came:
            return
        poller = select.poll()
        for descriptor in (self._read_end, *descriptors):
            poller.register(descriptor, select.POLLIN)
        poller.poll(max(0.0, timeout.total_seconds() * 1000))
        while can_be_read(self._read_end):
            os.read(self._read_end, 4096)

    def close(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_fd)
        os.close(self._read_end)
        os.close(self._write_end)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
        self._is_ending = self._is_ending or number in END_SIGNALS

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        if self._is_ending:
            return  # the grace goes on, and a job that stood still would be killed before its last save
        self._continued = False
        job = descendants(os.getpid(), self._spared)
        send(job, signal.SIGSTOP)  # its sessions have no terminal, and SIGTSTP does nothing there
        if not self._continued:
            os.kill(os.getpid(), signal.SIGSTOP)  # returns after SIGCONT
        send(job, signal.SIGCONT)

    def _note_continued(self, number: int, frame: FrameType | None) -> None:
        self._continued = True
