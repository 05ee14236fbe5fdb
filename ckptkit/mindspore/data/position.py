"""Defines the data interface that a state manager uses. Main thread only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol


class Position(Protocol):
    """Connects a checkpoint's state and its data; implemented for MindSpore pipelines and Python iterables.

    Call order: `check` (changes nothing; in another world it gets the result of `folded`), `prepare`, then the consumer
    makes its iterator, then `iterator_made`.
    """

    @property
    def own_draws(self) -> Collection[str]:
        """Global generators (``"python"``, ``"numpy"``) that the data has positioned and that must not be restored."""
        ...

    def at(self, delivered: int) -> tuple[int, int]:
        """Return the epoch, and the batches of it delivered, after ``delivered`` batches since epoch 0."""
        ...

    def placed(self, recorded: Mapping[str, Any], delivered: int) -> tuple[int, int]:
        """Do as `at`, from what a checkpoint recorded; raise ResumeError if that contradicts itself."""
        ...

    def state(self, delivered: int) -> dict[str, Any]:
        """Return what a checkpoint records after ``delivered`` batches, with the last one's digest as delivered."""
        ...

    def check(self, recorded: Mapping[str, Any]) -> None:
        """Raise ResumeError, naming what differs, unless the data is unchanged; changes nothing."""
        ...

    def folded(self, recorded: Mapping[str, Any], ranks: int, onto: int) -> dict[str, Any]:
        """Convert the record of a checkpoint of ``ranks`` to one of ``onto``, for `check` and all later calls.

        Raises:
            ResumeError: If nothing guarantees that both worlds have one order of samples, or it does not fold.
        """
        ...

    def prepare(self, delivered: int, recorded: Mapping[str, Any] | None) -> None:
        """Let the next iterator begin after ``delivered`` batches; ``recorded`` is None on a fresh start."""
        ...

    def iterator_made(self) -> None:
        """Undo what was only needed while the iterator was made."""
        ...

    def leave(self) -> None:
        """Leave the process as it was before `prepare`."""
        ...
