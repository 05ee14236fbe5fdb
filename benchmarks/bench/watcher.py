"""A thread that looks at the machine while others work: peak memory, and when a save has committed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType

INTERVAL_SECONDS = 0.008
TIMEOUT_SECONDS = 60.0


class Watcher:
    """Polls about every 8 ms, from ``with`` to its end.

    It counts anonymous and shared memory, and not the page cache: of this process, and of the whole machine, which
    also sees other processes' memory, those that have nothing to do with this included.

    Args:
        complete: Whether the save of a label has committed.
    """

    def __init__(self, complete: Callable[[int], bool]) -> None:
        self._complete = complete
        self._began: dict[int, float] = {}
        self._took: dict[int, float] = {}
        self._change = threading.Condition()
        self._stop = threading.Event()
        self._peak = (0, 0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        self._meminfo = os.open("/proc/meminfo", os.O_RDONLY)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        os.close(self._status)
        os.close(self._meminfo)

    def used_bytes(self) -> tuple[int, int]:
        """Now: by this process, by the whole machine."""
        return (
            _sum_of(self._status, "RssAnon", "RssShmem"),
            _sum_of(self._meminfo, "AnonPages", "Shmem"),
        )

    def peak_bytes(self) -> tuple[int, int]:
        """Since `forget_peak`."""
        return self._peak

    def forget_peak(self) -> None:
        """Begin again."""
        self._peak = self.used_bytes()

    def began(self, label: int) -> None:
        """A save begins now."""
        with self._change:
            self._began[label] = time.perf_counter()

    def took(self, label: int) -> float:
        """Seconds from its beginning to its commit, to 8 ms; waits for it.

        Raises:
            TimeoutError: If it does not come.
        """
        with self._change:
            if not self._change.wait_for(lambda: label in self._took, TIMEOUT_SECONDS):
                raise TimeoutError(f"save {label} was never complete")
            return self._took[label]

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            with self._change:
                for label in [one for one in self._began if self._complete(one)]:
                    self._took[label] = time.perf_counter() - self._began.pop(label)
                    self._change.notify_all()
            process, machine = self.used_bytes()
            self._peak = (max(self._peak[0], process), max(self._peak[1], machine))


def _sum_of(descriptor: int, *names: str) -> int:
    lines = dict(line.split(":", 1) for line in os.pread(descriptor, 8192, 0).decode().splitlines() if ":" in line)
    return sum(int(lines[name].split()[0]) for name in names) * 1024
