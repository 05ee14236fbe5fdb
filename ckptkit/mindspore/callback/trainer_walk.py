"""Lets a trainer's loop walk to the place from where a run continues, by `Walk`.

Guarantees: the loop's own variables are then what they were there: the epoch, the step in it, the place in the
accumulation cycle and the sum of the losses. Nothing is trained, no callback is called and nothing is logged. What the
loop changes in the trainer itself has to be restored after it. Main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np

from ckptkit.errors import ResumeError
from ckptkit.mindspore.callback.replaced import Replaced
from ckptkit.mindspore.callback.trainer_progress import TrainerProgress


class Walk:
    """Walks to a place, over one cycle of each earlier epoch and over all earlier batches of its own epoch.

    Args:
        trainer: The trainer.
        progress: As restored.
        epoch: Where the walk ends.
        batch: Batches before that place in this epoch.
        size: Of an epoch.
        ends: Whether the loop ends there.
        log: The logger of the loop.
    """

    def __init__(
        self,
        trainer: Any,
        progress: TrainerProgress,
        epoch: int,
        batch: int,
        *,
        size: int,
        ends: bool,
        log: logging.Logger,
    ) -> None:
        k = progress.accumulation_steps
        self._whole = size % k or k  # as far as an epoch goes in its last cycle; at least one batch
        if ends and batch == 0:  # the loop has no next epoch to begin
            epoch, batch = epoch - 1, self._whole
        self._last_epoch, self._last_batch = epoch, batch
        self._left = 0
        self._epoch = -1
        self._trained = 0
        self._progress = progress
        for name in vars(trainer.control):
            setattr(trainer.control, name, False)  # else the walk would evaluate, log, or stop
        self._log = log
        log.addFilter(_nothing)
        self._replaced = Replaced(
            trainer,
            callback_handler=_Silent(trainer.callback_handler.callbacks),
            training_step=self._step,
            floating_point_ops=lambda inputs: 0,
        )

    def leave(self) -> None:
        """Give the trainer back what was replaced."""
        self._log.removeFilter(_nothing)
        self._replaced.undo()

    def begin_epoch(self) -> None:
        """Note that the loop begins its next epoch."""
        self._epoch += 1
        self._left = self._last_batch if self._epoch == self._last_epoch else self._whole

    def has_batch(self) -> bool:
        """Return whether the present epoch has another batch to walk over."""
        return self._left > 0

    def has_arrived(self) -> bool:
        """Return whether nothing is left to walk."""
        return self._epoch >= self._last_epoch and self._left == 0

    def batch(self) -> Any:
        """Return what stands for a batch."""
        self._left -= 1
        return _Nothing()

    def _step(self, *args: Any, **kwargs: Any) -> Any:
        """Return what ``training_step`` returned last; the last loss is the whole sum, so that the loop has it."""
        self._trained += 1
        is_last = self._trained == self._last_epoch * self._whole + self._last_batch
        returned, total = self._progress.returned, self._progress.loss
        total = np.zeros((), np.float32) if total is None else np.asarray(total)
        loss = ms.Tensor(total if is_last else np.zeros_like(total))
        if not isinstance(returned, tuple):
            return loss
        return (loss, *(ms.Tensor(one) if isinstance(one, np.ndarray) else one for one in returned[1:]))


class _Nothing(dict[Any, Any]):
    """Stands for a batch: each of its columns is one, too."""

    def __getitem__(self, key: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(ms.Tensor, name):
            raise AttributeError(name)
        raise ResumeError(
            f"the trainer's loop asks its batch for {name} on its way to where the run continues, and no batch is "
            "there yet. Do that in training_step, or write the loop with CheckpointManager, as docs/exactness.md shows"
        )


class _Silent:
    """Stands for the handler of the callbacks, and calls none."""

    def __init__(self, callbacks: list[Any]) -> None:
        self.callbacks = callbacks

    def __getattr__(self, event: str) -> Callable[..., Any]:
        return lambda args, state, control, *others, **more: control


def _nothing(record: logging.LogRecord) -> bool:
    return False
