"""Runs ranks as threads of one process, to test many ranks together without a framework and in milliseconds.

Guarantees: a gather returns the messages of all ranks in every rank. A gather that waits for a rank whose function has
ended, or longer than the timeout, raises in all waiting ranks. Each rank is one thread; `run_ranks` returns after all
threads have ended.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

Result = TypeVar("Result")


class RankLostError(RuntimeError):
    """Reports a gather that waited for a lost rank, as a framework does after its own timeout."""


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
    """Connects one thread to the other ranks; a `ckptkit.core.process_group.World`."""

    def __init__(self, exchange: _Exchange, rank: int) -> None:
        self._exchange = exchange
        self._number = 0
        self.rank = rank
        self.size = exchange.size
        self.gathers = 0

    def gather(self, message: str) -> Sequence[str]:
        number, self._number = self._number, self._number + 1
        self.gathers += 1
        return self._exchange.gather(self.rank, number, message)

    def broadcast(self, message: str) -> str:
        return self.gather(message if self.rank == 0 else "")[0]


@dataclass
class Ended(Generic[Result]):
    """Holds how one rank's function ended."""

    result: Result | None = None
    error: BaseException | None = None


def run_ranks(
    size: int, function: Callable[[ThreadWorld], Result], *, timeout: timedelta = timedelta(seconds=60)
) -> list[Ended[Result]]:
    """Run ``function`` in each of ``size`` ranks and wait until all have ended."""
    exchange = _Exchange(size, timeout)
    ended: list[Ended[Result]] = [Ended() for _ in range(size)]

    def run(rank: int) -> None:
        try:
            ended[rank].result = function(ThreadWorld(exchange, rank))
        except BaseException as error:  # noqa: BLE001 - the caller gets every error
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
    """Return the results of all ranks; raises the first error, a RankLostError only if no rank raised another."""
    errors = [one.error for one in ended if one.error is not None]
    for error in sorted(errors, key=lambda one: isinstance(one, RankLostError)):
        raise error
    return [one.result for one in ended]  # type: ignore[misc]  # a rank without an error has a result
