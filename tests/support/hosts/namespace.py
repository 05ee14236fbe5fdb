"""A network namespace: addresses, links and processes that nothing outside of it can reach.

Guarantees: its name says which process made it, so `sweep` finds those whose maker is gone. `Namespace.delete` ends
every process in it, by its own id, and returns when the last one is gone. Needs root and Debian's iproute2. Any thread
may use one.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PREFIX = "ckptkit-test"
MEMORY = "/dev/shm"  # noqa: S108 - folders are made there that others cannot enter
END_SECONDS = 60
_PLACE = Path("/var/run/netns")
_CLONE_NEWNET = 0x40000000
_numbers = itertools.count()


def missing() -> str | None:
    """What this machine lacks for hosts of our own; None if nothing."""
    if shutil.which("ip") is None:
        return "ip not found; on Debian: apt-get install iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        run("unshare", "--net", "true")
    except RuntimeError as error:
        return f"this machine makes no network namespaces: {error}"
    return None


def run(*command: object) -> str:
    """Run a command of the machine; returns what it printed."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=END_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def sweep() -> None:
    """Remove the namespaces, with their processes, and the folders in memory of makers that were killed."""
    for place in [*_PLACE.glob(f"{PREFIX}-*"), *Path(MEMORY).glob(f"{PREFIX}-*")]:
        if Path(f"/proc/{place.name.removeprefix(PREFIX).split('-')[1]}").exists():
            continue
        if place.parent == _PLACE:
            try:
                Namespace(place.name).delete()
            except RuntimeError:
                if place.exists():  # otherwise another process has just swept it
                    raise
        else:
            shutil.rmtree(place, ignore_errors=True)


class Namespace:
    """A namespace that is there, or that `make` makes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._inside: ThreadPoolExecutor | None = None

    @classmethod
    def make(cls, what: str) -> Namespace:
        made = cls(f"{PREFIX}-{os.getpid()}-{next(_numbers)}-{what}")
        run("ip", "netns", "add", made.name)
        made.ip("link", "set", "lo", "up")
        return made

    def ip(self, *arguments: object) -> str:
        return run("ip", "-n", self.name, *arguments)

    def command(self, *command: object) -> list[str]:
        """The command that runs ``command`` in it, as the same process."""
        return ["ip", "netns", "exec", self.name, *map(str, command)]

    def call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call a function of this process in it: sockets that it makes, and threads and processes that it starts, are.

        One call at a time; all by the same thread.
        """
        if self._inside is None:
            self._inside = ThreadPoolExecutor(1, self.name, initializer=self._enter)
        return self._inside.submit(function, *arguments, **options).result()

    def pids(self) -> list[int]:
        return [pid for pid in map(int, run("ip", "netns", "pids", self.name).split()) if pid != os.getpid()]

    def kill(self) -> int:
        """SIGKILL for every process in it; returns how many there were, when they are gone."""
        until, killed = time.monotonic() + END_SECONDS, set()
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError), open_process(pid) as ended:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
                    if not select.select([ended], [], [], max(0.0, until - time.monotonic()))[0]:
                        raise TimeoutError(f"process {pid} in {self.name} does not die")
        return len(killed)

    def delete(self) -> None:
        """End what is in it and remove it; nothing happens if it is not there."""
        if self._inside is not None:
            self._inside.shutdown()
            self._inside = None
        if (_PLACE / self.name).exists():
            self.kill()
            run("ip", "netns", "del", self.name)

    def _enter(self) -> None:
        with open(_PLACE / self.name) as place:
            if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {self.name}")


@contextlib.contextmanager
def open_process(pid: int) -> Iterator[int]:
    """A descriptor that can be read once the process has ended, whose child it may be."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
