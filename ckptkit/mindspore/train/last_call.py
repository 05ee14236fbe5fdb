"""Judges whether the last call of a foreign train cell was complete, by `LastCall`.

A foreign cell does not say so, and a batch may count as delivered before it is trained.

Guarantees: an error that came out of a call is seen while it is being handled (``except``, ``finally``, ``with``); a
batch that no optimizer counted is seen if they counted each one before. Anything else is not seen: an interrupted call
whose error is no longer handled, and that has begun its update, looks like a complete one. Main thread only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

import mindspore as ms
from mindspore import nn

from ckptkit.errors import ResumeError
from ckptkit.mindspore.parameters.roles import optimizers_of

_STEPS = ("global_step", "state_step", "step_t")  # in MindSpore's optimizers, including the experimental ones


class LastCall:
    """Knows what was said of the last batch, and compares it with the errors and the optimizers' counts.

    Args:
        cells: The cells of the training.
        delivers_first: Whether a batch counts as delivered before it is trained, as by `ckptkit.data.resumable`.
    """

    def __init__(self, cells: Sequence[nn.Cell], *, delivers_first: bool) -> None:
        self._cells = cells
        self._delivers_first = delivers_first
        self._updating = [one for one in cells if optimizers_of([one])]
        self._optimizers = optimizers_of(cells)
        self._is_open = False  # delivered, and not said to be complete
        self._completes_each = False
        self._counts_each = False
        self._error_before: BaseException | None = None
        self._looked_at: tuple[int, list[int]] | None = None

    def begin(self) -> None:
        """Note that a batch was delivered."""
        self._completes_each = not self._is_open
        self._is_open = self._delivers_first
        self._error_before = sys.exc_info()[1]

    def end(self) -> None:
        """Note that the last batch has been trained."""
        self._is_open = False

    def look(self, delivered: int) -> None:
        """Compare later counts with those of now, after ``delivered`` batches."""
        self._looked_at = delivered, self.counts()

    def counts(self) -> list[int]:
        """Return the counts of those optimizers that count. Waits for the device."""
        counts = (getattr(one, name, None) for one in self._optimizers for name in _STEPS)
        return [int(one.asnumpy().reshape(-1)[0]) for one in counts if isinstance(one, ms.Parameter)]

    def updates_since(self, counts: Sequence[int], *, default: int) -> int:
        """Return how far the optimizer went that went farthest since `counts`; ``default`` if none counts."""
        return max((now - then for now, then in zip(self.counts(), counts, strict=True)), default=default)

    def doubt(self, delivered: int) -> str | None:
        """Return a warning if the last of ``delivered`` batches may not have been trained.

        Raises:
            ResumeError: If an error that is being handled shows that it was not, or not wholly.
        """
        errors = list(_handled_since(self._error_before))
        for error in errors:
            cell = _raised_in(error, self._cells if self._is_open else self._updating)
            if cell is not None:
                raise ResumeError(
                    f"{type(error).__name__} was raised in a call of {type(cell).__name__}, and the weights may have a "
                    f"part of an update that does not belong to {delivered} batches. This state is not saved. Restore "
                    "a checkpoint to train on exactly"
                )
        if not self._is_uncounted(delivered):
            return None
        text = (
            f"{delivered} batches of resumable() were delivered, but no optimizer has counted an update for the last "
            "one, as they did for each batch before: a resume would skip it. If it was trained, call "
            "manager.step(state) before the save"
        )
        if errors and self._completes_each:
            raise ResumeError(text)
        is_doubtful = bool(errors) or self._completes_each
        self._accept(delivered, counts_each=False)
        return text if is_doubtful else None

    def _is_uncounted(self, delivered: int) -> bool:
        """Return whether the optimizers counted every batch since the last look but the last one, which is open."""
        before, counts = self._looked_at or (delivered, self.counts())
        batches, updates = delivered - before, self.updates_since(counts, default=0)
        if self._is_open and batches > 0 and updates == batches - 1 and (updates > 0 or self._counts_each):
            return True
        self._accept(delivered, counts_each=updates == batches if batches > 0 else self._counts_each)
        return False

    def _accept(self, delivered: int, *, counts_each: bool) -> None:
        self._counts_each = counts_each
        self.look(delivered)


def _handled_since(earlier: BaseException | None) -> Iterator[BaseException]:
    """Yield the errors that are being handled, the last one first, up to ``earlier``."""
    error, seen = sys.exc_info()[1], set[int]()
    while error is not None and error is not earlier and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__context__


def _raised_in(error: BaseException, cells: Iterable[nn.Cell]) -> nn.Cell | None:
    """Return the one of ``cells`` in whose call ``error`` was raised, or None."""
    known = {id(one): one for one in cells}
    trace = error.__traceback__
    while trace is not None:
        found = known.get(id(trace.tb_frame.f_locals.get("self")))
        if found is not None:
            return found
        trace = trace.tb_next
    return None
