"""Judges whether the last call of a foreign train cell was complete, by `LastCall`.

A foreign cell does not say so, and a batch may count as delivered before it is trained.

Guarantees: a save from inside of a call is seen, and so is one while an error is handled that such a call raised. What
a loop has said of its last batch is judged by `Completion`. Without an error, a batch that an optimizer did not count
is seen if that one counted each batch before. Anything else is not seen: an interrupted call whose error is no longer
handled, and that has begun its update, looks like a complete one. Main thread only.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import mindspore as ms
from mindspore import nn

from ckptkit.core.stack import frames_from
from ckptkit.errors import ResumeError
from ckptkit.mindspore.parameters.roles import optimizers_of
from ckptkit.mindspore.train.completion import Completion

_STEPS = ("global_step", "state_step", "step_t")  # in MindSpore's optimizers, including the experimental ones
_CALLS = ("__call__", "construct")  # methods that run only in a call of a cell


class LastCall:
    """Compares the delivered batches with the errors and the optimizers' counts.

    Args:
        cells: The cells of the training.
        completion: Knows what the loop has said of its batches.
        counts: Whether each batch may be one update; not where a `CycleAdapter` tells of several batches per update.
    """

    def __init__(self, cells: Sequence[nn.Cell], completion: Completion, *, counts: bool) -> None:
        self._cells = cells
        self._completion = completion
        self._updating = [one for one in cells if optimizers_of([one])]
        counters = [_counters_of(one) for one in optimizers_of(cells)]
        self._steps = [one for each in counters for one in each]
        # Of each optimizer, whether it counts each batch; None while that is not known.
        self._counts_each: list[bool | None] = [None if counts else False for _ in self._steps]
        self._all_count = counts and bool(counters) and all(counters)  # some optimizers have no counter
        self._looked_at: tuple[int, list[int]] | None = None

    def restored(self, delivered: int) -> None:
        """Note that all is as after ``delivered`` batches."""
        self._looked_at = delivered, self.counts()

    def counts(self) -> list[int]:
        """Return the counts of those optimizers that count. Waits for the device."""
        return [int(one.asnumpy().reshape(-1)[0]) for one in self._steps]

    def updates_since(self, counts: Sequence[int], *, default: int) -> int:
        """Return how far the optimizer went that went farthest since `counts`; ``default`` if none counts."""
        return max((now - then for now, then in zip(self.counts(), counts, strict=True)), default=default)

    def doubt(self, delivered: int) -> str | None:
        """Return a warning if the last of ``delivered`` batches may not have been trained.

        Raises:
            ResumeError: If an error that is being handled, or the call that this comes from, shows that it was not, or
                not wholly.
        """
        within = _called_in(frames_from(sys._getframe(1)), self._cells)
        if within is not None:
            raise ResumeError(
                f"the save was asked for inside of a call of {type(within).__name__}, such as by a signal handler or "
                f"a hook, and that call is counted as one of {delivered} batches or not at all. This state is not "
                "saved. Set a flag there, and save between two calls"
            )
        errors = list(self._completion.errors())
        now, is_open = self.counts(), self._completion.is_open(delivered)
        uncounted = is_open and self._is_uncounted(delivered, now, in_doubt=bool(errors))
        unproven = is_open and not self._is_counted(delivered, now)
        for error in errors:
            cell = self._broken_off(error, proven=not is_open or bool(self._steps and not unproven))
            if cell is not None:
                raise ResumeError(
                    f"{type(error).__name__} was raised in a call of {type(cell).__name__}, and the weights may have a "
                    f"part of an update that does not belong to {delivered} batches. This state is not saved. Restore "
                    "a checkpoint to train on exactly"
                )
        says, doubt = self._completion.is_said, self._completion.judge(delivered, delivered)
        if uncounted and says and not errors:
            doubt = (
                f"{delivered} batches of resumable() were delivered, but an optimizer has not counted an update for "
                "the last one, as it did for each batch before: a resume would skip it. If it was trained, call "
                "manager.step(state) before the save"
            )
        self._accept(delivered, now, learns=not uncounted)
        return doubt

    def _broken_off(self, error: BaseException, *, proven: bool) -> nn.Cell | None:
        """Return the cell that raised ``error`` in a call, if the state may be half changed; otherwise None."""
        updating = _called_in(_frames_of(error), self._updating)
        if updating is not None or proven:
            return updating  # a network that raised after the update, as in an evaluation, has changed nothing
        return _called_in(_frames_of(error), self._cells)

    def _is_counted(self, delivered: int, counts: list[int]) -> bool:
        """Return whether every optimizer counted all batches since the last look: the last one, too."""
        before, earlier = self._looked_at or (delivered, counts)
        batches = delivered - before
        all_batches = all(now - then == batches for now, then in zip(counts, earlier, strict=True))
        return self._all_count and batches > 0 and all_batches

    def _is_uncounted(self, delivered: int, counts: Sequence[int], *, in_doubt: bool) -> bool:
        """Return whether an optimizer counted all batches since the last look but the last one.

        Several that it counted show that it counts each. If an error is handled (``in_doubt``), nothing that was seen
        against it is enough.
        """
        before, earlier = self._looked_at or (delivered, counts)
        batches = delivered - before
        return batches > 0 and any(
            now - then == batches - 1 and (counts_each or (counts_each is None and (now - then > 1 or in_doubt)))
            for now, then, counts_each in zip(counts, earlier, self._counts_each, strict=True)
        )

    def _accept(self, delivered: int, counts: list[int], *, learns: bool) -> None:
        """Compare later counts with these; if it ``learns``, also learn which optimizers count each batch."""
        before, earlier = self._looked_at or (delivered, counts)
        batches = delivered - before
        self._looked_at = delivered, counts
        for at, updates in enumerate(now - then for now, then in zip(counts, earlier, strict=True)):
            if learns and batches > 0 and updates != batches:
                self._counts_each[at] = False
            elif learns and batches > 1:
                self._counts_each[at] = True


def _counters_of(optimizer: nn.Cell) -> list[ms.Parameter]:
    found = (getattr(optimizer, name, None) for name in _STEPS)
    return [one for one in found if isinstance(one, ms.Parameter)]


def _frames_of(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _called_in(frames: Iterable[FrameType], cells: Collection[nn.Cell]) -> nn.Cell | None:
    """Return the first of ``cells`` that one of the frames is a call of, or None."""
    known: dict[int, Any] = {id(one): one for one in cells}
    callers = (frame.f_locals.get("self") for frame in frames if frame.f_code.co_name in _CALLS)
    return next((known[id(one)] for one in callers if id(one) in known), None)
