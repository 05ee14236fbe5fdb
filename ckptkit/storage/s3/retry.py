"""Retries a request while its failure may be temporary, with backoff and jitter, until a deadline.

A request that failed permanently is never repeated. The log reports trouble that lasts, and its end. No random number
is drawn from Python's own generator, whose state belongs to training; botocore's own retries draw from it and have no
deadline, and are off. The delays are "full jitter", as in the AWS Architecture Blog. Any thread may call it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from ckptkit.core.worker import Latch
from ckptkit.errors import StorageError

_log = logging.getLogger("ckptkit")
_T = TypeVar("_T")

_FIRST_DELAY_SECONDS = 0.2
_LONGEST_DELAY_SECONDS = 15.0
_TELL_AFTER_SECONDS = 5.0
_TELL_EVERY_SECONDS = 60.0


class Transient(Exception):  # noqa: N818 - a temporary condition, not an error of this program
    """Reports a temporary failure, after which the request is sent again; ``__cause__`` is the backend's error."""


@dataclass(frozen=True)
class Patience:
    """Holds the time limits for a storage.

    Attributes:
        request: Limit of one request, from its first byte to the last byte of its answer.
        retrying: Limit of a request and all its retries.
        first: Replaces ``retrying`` until the first answer; a wrong endpoint is then more likely than an outage.
    """

    request: timedelta = timedelta(minutes=2)
    retrying: timedelta = timedelta(minutes=5)
    first: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, timedelta) or value <= timedelta():
                raise ValueError(f"{name} must be a timedelta above zero, got {value!r}")


class Retry:
    """Repeats requests to one storage; clock, sleep and random generator are arguments for tests."""

    def __init__(
        self,
        patience: Patience,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._patience = patience
        self.monotonic = monotonic
        self._wait = wait
        self._answered = False
        self._rng = rng or random.Random()  # noqa: S311 - delays are not secret
        self._lock = threading.Lock()
        self._since: float | None = None
        self._told_at: float | None = None

    def call(self, what: str, request: Callable[[float], _T], stop: Latch | None = None) -> _T:
        """Send ``request`` until it succeeds, fails permanently, or time runs out, sooner before the first answer.

        Args:
            what: The operation, for messages: "could not {what}".
            request: Called with the time of ``monotonic`` by which it must end.
            stop: When it is open, a failed request is not sent again.

        Raises:
            StorageError: If time ran out or ``stop`` is open. Other exceptions of ``request`` pass through unchanged.
        """
        patience = (self._patience.retrying if self._answered else self._patience.first).total_seconds()
        until = self.monotonic() + patience
        wait = self._wait or (stop or Latch()).wait
        tries = 0
        while True:
            tries += 1
            begun = self.monotonic()
            try:
                answer = request(begun + self._patience.request.total_seconds())
            except Transient as trouble:  # kept nowhere: its traceback holds the request's memory
                seconds = self._delay(tries)
                if self.monotonic() + seconds >= until or (stop is not None and stop.is_open):
                    raise StorageError(
                        f"could not {what}: {trouble}. ckptkit tried {tries} times within {patience:.0f} s. Check that "
                        "endpoint_url is right and the storage is reachable, then try again"
                    ) from trouble.__cause__
                self._tell_of(what, trouble, begun)
            except (FileNotFoundError, FileExistsError):
                self._tell_of_recovery()  # these are answers, too
                raise
            else:
                self._tell_of_recovery()
                return answer
            wait(seconds)

    def _delay(self, tries: int) -> float:
        longest = min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** min(tries, 16))
        return self._rng.uniform(0.0, longest)

    def _tell_of(self, what: str, trouble: Transient, begun: float) -> None:
        now = self.monotonic()
        with self._lock:
            self._since = begun if self._since is None else self._since
            lasted = now - self._since
            silent = now - (self._since if self._told_at is None else self._told_at)
            if silent < (_TELL_AFTER_SECONDS if self._told_at is None else _TELL_EVERY_SECONDS):
                return
            self._told_at = now
        _log.warning("the storage has failed for %.0f s; retrying (could not %s: %s)", lasted, what, str(trouble))

    def _tell_of_recovery(self) -> None:
        self._answered = True
        if self._since is None:  # the usual case, without the lock
            return
        with self._lock:
            since, was_reported = self._since, self._told_at is not None
            self._since = self._told_at = None
        if was_reported and since is not None:
            _log.warning("the storage answers again, after %.0f s", self.monotonic() - since)
