"""Gives the training of a trainer with a loop of its own to a checkpoint callback: replaces ``trainer.train``.

Guarantees: the next ``train()`` of the trainer is resumed, positioned and saved, or raises before its first batch. A
second one is refused, and so is a resume of the trainer's own. It is said if none came. Main thread only.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from ckptkit.errors import ResumeError
from ckptkit.mindspore.callback.expected_training import ExpectedTraining
from ckptkit.mindspore.callback.replaced import Replaced
from ckptkit.mindspore.callback.trainer_loop import TrainerLoop

_NEEDED = ("train", "get_train_dataloader", "training_step", "callback_handler", "args", "state", "control", "model")
_OWN_RESUME = ("resume_from_checkpoint", "model_path")  # arguments of train; the second is its old name
_MARK = "_attached_by_ckptkit"


class TrainerAttachment(ExpectedTraining):
    """Gives the next ``train()`` of a trainer to a callback, until `detach` or the end of a ``with`` block.

    Attributes:
        preempted: Whether a signal or `Preemption.when` ended it, so that it is incomplete.

    Args:
        root: The callback's run root, for messages.
        trainer: Follows the protocol of Hugging Face's ``Trainer``.
        new_loop: Makes what runs its loop.

    Raises:
        TypeError: If ``trainer`` does not follow the protocol.
        ResumeError: If a callback is attached to it already.
    """

    def __init__(self, root: str, trainer: Any, new_loop: Callable[[Any], TrainerLoop]) -> None:
        self._kind = type(trainer).__name__
        missing = [name for name in _NEEDED if not hasattr(trainer, name)]
        if missing:
            raise TypeError(
                f"attach(trainer): a {self._kind} has no {', '.join(missing)}, so its loop is not that of Hugging "
                "Face's Trainer. If it calls Model.train, use attach() without it; otherwise write the loop with "
                "CheckpointManager, as docs/exactness.md shows"
            )
        if hasattr(trainer, _MARK):
            raise ResumeError(
                f"{getattr(trainer, _MARK)} is attached to this {self._kind} already, and a training has one run root. "
                "Call detach() on what its attach() returned"
            )
        super().__init__(root)
        self._new_loop = new_loop
        self.preempted = self._has_ended = False
        self._loop: TrainerLoop | None = None
        start = trainer.train
        self._replaced = Replaced(trainer, **{_MARK: root, "train": self._given_to_the_loop(trainer, start)})

    def detach(self) -> None:
        """Give the trainer its own ``train`` back; does nothing the second time."""
        self._replaced.undo()
        super().detach()

    def _given_to_the_loop(self, trainer: Any, start: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(start)

        @functools.wraps(start)
        def train(*args: Any, **kwargs: Any) -> Any:
            self._called = True
            self._refuse_second()
            given = signature.bind(*args, **kwargs).arguments
            if any({**given, **given.get("kwargs", {})}.get(name) for name in _OWN_RESUME):
                raise ResumeError(
                    f"this {self._kind} would resume from a checkpoint of its own, but {self._root} decides where the "
                    "training continues: leave resume_from_checkpoint out"
                )
            loop = self._loop = self._new_loop(trainer)
            try:
                returned = start(*args, **kwargs)
                loop.end()
                self._has_ended = not loop.is_complete
            finally:
                self.point, self.preempted = loop.point, loop.preempted
                self._loop = None
                loop.leave(*sys.exc_info())
            return returned

        return train

    def _refuse_second(self) -> None:
        if self._loop is not None or self._has_ended:
            raise ResumeError(
                f"train() of this {self._kind} is called a second time, but {self._root} holds the training of the "
                "first call. Call detach() before it, and attach a callback with another root"
            )

    def _unused(self) -> str:
        return (
            f"nothing called train() of the {self._kind} that {self._root} was attached to, so nothing was saved. "
            "Attach the callback to the trainer that trains"
        )
