"""Ranks as threads of one process: what many ranks do together, without a framework and in milliseconds.

Guarantees: a gather returns in every rank what all of them said; one that waits for a rank whose function has ended, or
longer than the timeout, raises in all that wait. Each rank is one thread; `run_ranks` returns after all have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

Result = TypeVar("Result")


class RankLostError(RuntimeError):
    """A gather waited for a rank that is gone; as a framework would say it after its own timeout."""


class _Exchange:
    def __init__(self, size: int, timeout: timedelta) -> None:
        self.size = size
        self._timeout = timeout
        self._changed = threading.Condition()
        self._rounds: list[dict[int, str]] = []
        self._gone: set[int] = set()

    def leave(self, rank: int) -> None:
        with self._changed:
            self._gone.add(rank)
            self._changed.notify_all()

    def gather(self, rank: int, number: int, message: str) -> list[str]:
        with self._changed:
            while len(self._rounds) <= number:
                self._rounds.append({})
            said = self._rounds[number]
            said[rank] = message
            self._changed.notify_all()
            complete = self._changed.wait_for(
                lambda: len(said) == self.size or bool(self._gone - said.keys()), self._timeout.total_seconds()
            )
            if not complete or len(said) < self.size:
                raise RankLostError(f"rank {rank} waits for {sorted(set(range(self.size)) - said.keys())}")
            return [said[one] for one in range(self.size)]


class ThreadWorld:
    """The `ckptkit.core.process_group.World` of one of the threads."""

    def __init__(self, exchange: _Exchange, rank: int) -> None:
        self._exchange = exchange
        self._number = 0
        self.rank = rank
        self.size = exchange.size
        self.gathers = 0

    def gather(self, message: str) -> Sequence[str]:
        """As `ckptkit.core.process_group.World`."""
        number, self._number = self._number, self._number + 1
        self.gathers += 1
        return self._exchange.gather(self.rank, number, message)

    def broadcast(self, message: str) -> str:
        """As `ckptkit.core.process_group.World`."""
        return self.gather(message if self.rank == 0 else "")[0]


@dataclass
class Ended(Generic[Result]):
    """How one rank's function ended.

    Attributes:
        result: What it returned.
        error: What it raised.
    """

    result: Result | None = None
    error: BaseException | None = None


def run_ranks(
    size: int, function: Callable[[ThreadWorld], Result], *, timeout: timedelta = timedelta(seconds=60)
) -> list[Ended[Result]]:
    """Run ``function`` in each of ``size`` ranks and wait until all have ended.

    Args:
        size: Ranks.
        function: Gets its rank's world.
        timeout: How long a gather may wait.
    """
    exchange = _Exchange(size, timeout)
    ended: list[Ended[Result]] = [Ended() for _ in range(size)]

    def run(rank: int) -> None:
        try:
            ended[rank].result = function(ThreadWorld(exchange, rank))
        except BaseException as error:  # noqa: BLE001 - it is what the caller wants to know
            ended[rank].error = error
        finally:
            exchange.leave(rank)

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank-{rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended


def results_of(ended: Sequence[Ended[Result]]) -> list[Result]:
    """What each rank returned; raises the first error that there was, of a rank that was not only left alone."""
    errors = [one.error for one in ended if one.error is not None]
    for error in sorted(errors, key=lambda one: isinstance(one, RankLostError)):
        raise error
    return [one.result for one in ended]  # type: ignore[misc]  # no error, hence a result
