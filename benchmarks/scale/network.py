"""The way to an object store on a virtual clock: what requests cost, drawn from a seed, and how many there were.

A request takes a log-normal time, and one in a hundred fails and is sent again by the real `Retry`. Each rank has a
clock of its own. Requests of the threads of a pool go beside each other: each takes the lane that is free first, as
many as the product has threads; its caller goes on when the last lane has ended.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from ckptkit.core import worker
from ckptkit.storage.s3.errors import Patience, Retry, Transient

P50_SECONDS = 0.030
P99_SECONDS = 0.300
FAILING = 0.01
MOST_LANES = 64  # of one rank

SIGMA = math.log(P99_SECONDS / P50_SECONDS) / statistics.NormalDist().inv_cdf(0.99)

# By the names of the threads that the product makes.
POOLS = {"ckptkit-read": worker.THREADS}


class Request(NamedTuple):
    """One that was answered in the end.

    Attributes:
        kind: "get", "put", "list" or "delete".
        key: Of the object, or what was listed.
        tries: How often it was sent.
    """

    kind: str
    key: str
    tries: int


class Span(NamedTuple):
    """When a request was first sent, and when it was answered."""

    sent: float
    answered: float


@dataclass
class Line:
    """What one rank asked for so far.

    Attributes:
        now: Its clock, in seconds.
        requests: In order, repetitions counted within.
    """

    now: float = 0.0
    requests: list[Request] = field(default_factory=list)


class Network:
    """Requests of the ranks, of one rank at a time.

    Args:
        seed: Of all latencies and failures.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._retry = Retry(Patience(), monotonic=lambda: self._at, wait=self._pass, rng=self._rng)
        self._at = 0.0
        self._pool = ""
        self._lanes: list[float] = []
        self.line = Line()

    def reseed(self, seed: int) -> None:
        """Draw from another seed from now on."""
        self._rng.seed(seed)

    def become(self, line: Line) -> None:
        """Go on as the rank that ``line`` is of."""
        self._join()
        self.line = line

    def now(self) -> float:
        """The rank's clock."""
        with self._lock:
            self._join()
            return self.line.now

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._join()
            self.line.now += seconds

    def send(self, kind: str, key: str) -> Span:
        """One request and its answer."""
        with self._lock:
            pool = threading.current_thread().name.rpartition("_")[0] or threading.current_thread().name
            if pool not in POOLS:
                self._join()
                span, tries = self._sent(self.line.now)
                self.line.now = span.answered
            else:
                if pool != self._pool:
                    self._join()
                    self._pool, self._lanes = pool, [self.line.now] * min(POOLS[pool], MOST_LANES)
                span, tries = self._sent(self._lanes[0])
                heapq.heapreplace(self._lanes, span.answered)
            self.line.requests.append(Request(kind, key, tries))
            return span

    def draw(self) -> float:
        """How long one request takes, with all its repetitions."""
        return self._sent(0.0)[0].answered

    def _sent(self, at: float) -> tuple[Span, int]:
        tries = 0
        self._at = at

        def once(_: float) -> None:
            nonlocal tries
            tries += 1
            self._at += self._rng.lognormvariate(math.log(P50_SECONDS), SIGMA)
            if self._rng.random() < FAILING:
                raise Transient("SlowDown")

        self._retry.call("reach the store", once)
        return Span(at, self._at), tries

    def _pass(self, seconds: float) -> None:
        self._at += seconds

    def _join(self) -> None:
        """The pool's caller goes on, if there was one."""
        if self._lanes:
            self.line.now = max(self._lanes)
            self._pool, self._lanes = "", []
