"""Bounds how many bytes a second an upload sends, so that training has the rest of the network.

Guarantees: up to any moment, no more was let through than the rate allows since the first byte, and one piece. Once
lifted, nothing waits any more, until it is restored. Threads: one spends; any may lift or restore.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ckptkit.core.worker import Latch


class Pace:
    """Makes its caller wait."""

    def __init__(
        self,
        bytes_per_second: int | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._monotonic = monotonic
        self._lifted = Latch()
        self._pause = pause or self._wait
        self._free_at = monotonic()

    def spend(self, size_bytes: int) -> None:
        if self._bytes_per_second is None or self._lifted.is_open:
            return
        now = self._monotonic()
        self._free_at = max(now, self._free_at) + size_bytes / self._bytes_per_second
        self._pause(self._free_at - now)

    def _wait(self, seconds: float) -> None:
        self._lifted.wait(seconds)

    def lift(self) -> None:
        self._lifted.open()

    def restore(self) -> None:
        self._lifted = Latch()
