"""What a state manager asks of the data that feeds a training. Main thread only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol


class Position(Protocol):
    """The seam between a checkpoint's state and its data: MindSpore pipelines and Python iterables differ below it.

    The order is `check` (changes nothing; in another world on what `folded` gave), `prepare`, then the consumer makes
    its iterator, then `iterator_made`.
    """

    @property
    def own_draws(self) -> Collection[str]:
        """Global generators (``"python"``, ``"numpy"``) that stand where the data left them and must stay there."""
        ...

    def at(self, delivered: int) -> tuple[int, int]:
        """Epoch, and batches of it delivered, after ``delivered`` batches since epoch 0."""
        ...

    def placed(self, recorded: Mapping[str, Any], delivered: int) -> tuple[int, int]:
        """As `at`, from what a checkpoint recorded; raises ResumeError if that contradicts itself."""
        ...

    def state(self, delivered: int) -> dict[str, Any]:
        """What a checkpoint records after ``delivered`` batches, with the last one's digest as it was handed out."""
        ...

    def check(self, recorded: Mapping[str, Any]) -> None:
        """Raise ResumeError, naming what differs, unless the data is what it was; changes nothing."""
        ...

    def folded(self, recorded: Mapping[str, Any], ranks: int, onto: int) -> dict[str, Any]:
        """What a checkpoint of ``ranks`` recorded, as one of ``onto`` would have; for `check` and all that follows it.

        Raises:
            ResumeError: If nothing guarantees that both worlds have one order of samples, or it does not fold.
        """
        ...

    def prepare(self, delivered: int, recorded: Mapping[str, Any] | None) -> None:
        """Let the next iterator begin after ``delivered`` batches; ``recorded`` is None on a fresh start."""
        ...

    def iterator_made(self) -> None:
        """Undo what was only for the making of the iterator."""
        ...

    def leave(self) -> None:
        """Leave the process as it was before `prepare`."""
        ...
