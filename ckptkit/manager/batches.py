"""Gives the batches of a loop with their numbers, and saves between them, for `CheckpointManager.loop`.

Guarantees: a loop that ends has saved. A manager that no ``with`` block closes is closed where the loop ends, or, if
the loop was left, as the program ends. Training thread only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from traceback import walk_tb
from types import TracebackType
from typing import Protocol, TypeVar

from ckptkit.manager.background import SaveHandle
from ckptkit.manager.final_save import Metrics
from ckptkit.manager.heartbeat.record import Phase
from ckptkit.manager.heartbeat.writer import HEARTBEAT
from ckptkit.manager.process.at_exit import AT_EXIT
from ckptkit.manager.run import Run
from ckptkit.snapshot import Capturable

_Batch = TypeVar("_Batch")


class Owner(Protocol):
    """The manager of a run, which `numbered` calls as a loop would."""

    def step(self, state: Capturable, metrics: Metrics = None) -> SaveHandle | None:
        """See `CheckpointManager.step`."""
        ...

    def save_final(self, state: Capturable, metrics: Metrics = None) -> str:
        """See `CheckpointManager.save_final`."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class NumberedBatches(Iterator[tuple[int, _Batch]]):
    """Gives the batches of a loop with their numbers; see `CheckpointManager.loop`.

    A class, since a generator that runs hides what iterates over it.
    """

    def __init__(self, batches: Iterator[tuple[int, _Batch]]) -> None:
        self._batches = batches

    def __next__(self) -> tuple[int, _Batch]:
        return next(self._batches)


def numbered(
    manager: Owner, run: Run, state: Capturable, batches: Iterable[_Batch], *, closes: bool
) -> Iterator[tuple[int, _Batch]]:
    """Yield the batches with their numbers; see `CheckpointManager.loop`.

    Args:
        manager: Saves around them.
        run: Its run.
        state: What is trained.
        batches: What is left.
        closes: Whether to close the manager, because no ``with`` block does.
    """
    number = begun = state.progress().batches_delivered
    is_finalizing = sys.is_finalizing  # a generator that ends with the interpreter finds no modules
    try:
        for number, batch in enumerate(batches, begun + 1):
            yield number - 1, batch
            if run.stepped_at != number:
                manager.step(state)
            if run.final_save.is_over:
                break
        else:
            run.is_complete = run.is_complete or number == begun
            manager.save_final(state)
    except GeneratorExit:  # whether an error left the loop is known as the program ends, and not here
        if is_finalizing():
            raise
        run.leave(number, for_good=closes)
        if closes:
            loop = sys._getframe(1)
            AT_EXIT.add(partial(_exit_left, manager, (id(loop), loop.f_lineno)))
        raise
    except BaseException as error:
        if closes:
            _exit(manager, error)
        raise
    if closes:
        _exit(manager, None)


def _exit_left(manager: Owner, left_at: tuple[int, int]) -> None:
    """Close the manager as the program ends; an error that was raised where the loop was left came in training."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    if error is not None and left_at in [(id(frame), line) for frame, line in walk_tb(error.__traceback__)]:
        HEARTBEAT.enter(Phase.TRAINING)
    _exit(manager, error)


def _exit(manager: Owner, error: BaseException | None) -> None:
    manager.__exit__(None if error is None else type(error), error, None)
