"""Resumes and saves the training of a trainer with a loop of its own, by `TrainerAttachment`.

The loop counts its epochs in a ``for`` statement, which cannot be set from outside. So a resumed loop gets an empty
epoch for each one that is done, and runs no callback meanwhile. At its place the ``enumerate`` around the batches is
moved on, and the observer puts back what training changes in objects and in the loop's variables.

Guarantees: batches, trainer, callbacks and loop go on as in an uninterrupted run. A save is taken when the loop asks
for another batch, after all that belongs to the last one. What cannot be resumed is refused at the first batch; batches
taken ahead or left out, and an epoch that ends early, as they happen. Main thread only.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import FrameType, SimpleNamespace
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn
from typing_extensions import Self

from ckptkit.core.progress import ResumePoint
from ckptkit.errors import ResumeError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.mindspore.callback.attachment import Attachment, Replaced
from ckptkit.mindspore.callback.session import loss_of
from ckptkit.mindspore.data.pipeline_position import DatasetPosition
from ckptkit.mindspore.data.resumable import Resumable, batches_of
from ckptkit.mindspore.observe.frame_variables import set_variables, variables_of
from ckptkit.mindspore.observe.walk_roots import LOOPS
from ckptkit.mindspore.state.manager import StateManager, Training

_NEEDED = ("train", "get_train_dataloader", "training_step", "callback_handler", "args", "state", "control", "model")
_OWN_RESUME = ("resume_from_checkpoint", "model_path")  # arguments of train; the second is its old name
LOOP_COUNTERS = "trainer_loop"  # of the counters among the stateful objects
_SUM = "tr_loss"  # the loop's variable that has the sum of the losses
_PARAMETER = ms.Parameter
_INSTEAD = "Write the loop with ckptkit.loop instead, as docs/guide.md shows"


class TrainerAttachment(Attachment):
    """Attaches a callback to a trainer with a loop of its own.

    Attributes:
        preempted: Whether a signal or `Preemption.when` ended the training, so that it is incomplete.

    Args:
        root: As for `Attachment`.
        trainer: Follows the protocol of Hugging Face's ``Trainer``.
        **of_callback: Arguments of `TrainerLoop`.

    Raises:
        TypeError: If ``trainer`` does not follow the protocol.
    """

    def __init__(self, root: str, trainer: Any, **of_callback: Any) -> None:
        if missing := ", ".join(name for name in _NEEDED if not hasattr(trainer, name)):
            what = f"attach(trainer): a {type(trainer).__name__} has no {missing}"
            why = "so its loop is not that of Hugging Face's Trainer. If it calls Model.train, use attach() without it"
            raise TypeError(f"{what}, {why}. {_INSTEAD}")
        super().__init__(root, trainer, "train")
        self._new_loop = functools.partial(TrainerLoop, trainer, **of_callback)
        self.preempted = False

    def _train(self, start: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ResumePoint | None]:
        given = inspect.signature(start).bind(*args, **kwargs).arguments
        if any({**given, **given.get("kwargs", {})}.get(name) for name in _OWN_RESUME):
            why = f"but {self._root} decides where the training goes on: leave resume_from_checkpoint out"
            raise ResumeError(f"this {self._kind} would resume from a checkpoint of its own, {why}")
        loop = self._new_loop()
        try:
            with loop.exits:
                returned = start(*args, **kwargs)
                loop.end()
        finally:
            self.preempted = loop.preempted
        return returned, loop.point


class LoopCounters:
    """Counts the micro-steps and updates of a trainer, for checkpoints; is its `CycleAdapter`, too."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.trained = 0  # micro-steps since epoch 0
        self.accumulation_steps = int(trainer.args.gradient_accumulation_steps)

    @property
    def micro_step(self) -> int:
        """Micro-steps of the running cycle: the trainer's cycles do not end with an epoch."""
        return self.trained % self.accumulation_steps

    def state_dict(self) -> dict[str, int]:
        """Return both counts."""
        return {"trained": self.trained, "updates": self._trainer.state.global_step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore both."""
        self.trained, self._trainer.state.global_step = state["trained"], state["updates"]


@dataclass(eq=False)
class TrainerLoop:
    """Runs one call of ``trainer.train``, and is the iterator over each of its epochs."""

    trainer: Any
    new_manager: Callable[[], CheckpointManager]
    new_state: Callable[..., StateManager]
    restore: Callable[[CheckpointManager, StateManager], ResumePoint]
    training: Training
    stateful: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.point: ResumePoint | None = None  # where the training began
        # Whether nothing was left to train; a signal or `Preemption.when` ended it.
        self.is_complete = self.preempted = False
        nothing: Any = None
        self._loader = self._manager = self._state = self._batches = nothing
        self._frame = nothing  # runs the loop
        self._first: list[Any] = []  # the batch that was made before the loop asked for it
        self._place = 0, 0  # the epoch, and the batch in it, where this start trains first
        self._epoch, self._in_epoch, self._size = -1, 0, 0  # the size of an epoch
        self._has_arrived = self._has_given = False  # at its place; a batch
        self._is_moved = self._is_untold = False  # the latter: to the manager, that the last batch is done
        self._silence, self.exits = contextlib.ExitStack(), contextlib.ExitStack()  # until its place; until its end
        self._counters = LoopCounters(self.trainer)
        get = functools.partial(self._get_train_dataloader, self.trainer.get_train_dataloader)
        train = functools.partial(self._training_step, self.trainer.training_step)
        self.exits.callback(Replaced(self.trainer, get_train_dataloader=get, training_step=train).undo)

    def end(self) -> None:
        """Commit the last state, once ``train`` has returned; ResumeError if the loop never came to its place."""
        if self.point is None:
            raise self._refusal("did not call create_dict_iterator of what get_train_dataloader() returned")
        if self.is_complete:
            self._state.start.trained()
            self._manager.declare_complete()
        elif not self._has_arrived:
            raise self._refusal(f"ended at an empty epoch, and the run continues in epoch {self._place[0]}")
        elif not self._manager.preempted:  # else the final save was decided as training stopped; the grace may be over
            state, variables = self.trainer.state, variables_of(self._frame)
            if hasattr(variables.get(_SUM), "__sub__"):  # the trainer's own sum has it by now
                set_variables(self._frame, {_SUM: variables[_SUM] - variables[_SUM]})
            if self.trainer.control.should_training_stop and state.global_step < state.max_steps:
                self._state.end(f"the trainer stopped after {state.global_step} optimizer steps")
            if self._is_untold:
                self._tell()  # after that: a state that this saves is not saved again
            self._manager.save_final(self._state)

    def _get_train_dataloader(self, get: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loader = get(*args, **kwargs)
        if self._loader is not None:
            return loader
        if not isinstance(loader, ds.Dataset):
            raise self._refusal(f"has no MindSpore pipeline: get_train_dataloader() returned a {type(loader).__name__}")
        self._loader = loader
        shown: Any = copy.copy(loader)  # the position shadows this method of the pipeline itself
        # A plain function, since MindSpore copies the tree to make an iterator, and does not copy functions.
        shown.create_dict_iterator = lambda num_epochs=1, **options: self._begin_epoch(sys._getframe(1), options)
        return shown

    def _training_step(self, train: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        returned = train(*args, **kwargs)
        self._counters.trained += 1
        if self._manager is not None:
            self._state.observe_step(self._state.last_batch, returned)
            self._manager.observe(loss_of(returned))
        return returned

    def _begin_epoch(self, frame: FrameType, options: dict[str, Any]) -> Self:
        if self.point is None:
            self._open(frame, options)
        elif self._is_untold:
            if self._in_epoch != self._size:
                place = f"epoch {self._epoch} ended after {self._in_epoch} of its {self._size} batches"
                raise self._refusal(f"leaves batches out: {place} (should_epoch_stop)")
            self._tell()
            self._state.ask_batch()  # before on_epoch_begin, of which it would say that it comes late
        self._epoch += 1
        self._in_epoch = 0
        if self.is_complete or (self._epoch, 0) == self._place:
            self._arrive()  # before on_epoch_begin
        return self

    def _open(self, frame: FrameType, options: dict[str, Any]) -> None:
        trainer, counters = self.trainer, self._counters
        epochs, callbacks = trainer.state.num_train_epochs, trainer.callback_handler.callbacks
        position = DatasetPosition(self._loader, augmentation=self.training.augmentation)
        batches = Resumable(position, epochs, lambda: batches_of(position, epochs, "create_dict_iterator", **options))
        cycle = self.training.cycle or (None if counters.accumulation_steps == 1 else counters)
        training = replace(self.training, augmentation=None, cycle=cycle)
        parts = [getattr(trainer, name, None) for name in ("train_model", "model", "optimizer")]
        cells = [part for part in parts if isinstance(part, nn.Cell)]
        if not cells:
            raise self._refusal(f"trains a {type(trainer.model).__name__}, which is not an nn.Cell")
        manager = self._manager = self.new_manager()
        self.exits.push(manager)
        self.exits.callback(lambda: setattr(self, "preempted", manager.preempted))
        named = {LOOP_COUNTERS: counters, **self.stateful}
        state = self._state = self.new_state(cells, batches, training=training, **named)
        self.exits.callback(position.leave)
        state.has_all_epochs = lambda: batches.is_over() or trainer.state.global_step >= trainer.state.max_steps
        self._frame = frame  # which holds all variables of the loop
        LOOPS[frame] = f"{type(trainer).__name__}.{frame.f_code.co_name}"
        self.exits.callback(LOOPS.pop, frame, None)
        self.exits.callback(lambda: setattr(self, "_frame", None))
        point = self.restore(manager, state)
        state.examination.judge_callbacks([trainer.state, trainer.control, *callbacks], [], callbacks)
        self._size, self._place, self._batches = position.size, position.at(point.batches_delivered), iter(batches)
        self.exits.callback(self._batches.close)  # while its iterator lives, a pipeline reads ahead, and may draw
        self.is_complete = bool(point.batches_delivered) and state.is_over()
        self.point = replace(point, complete=self.is_complete)
        if point.batches_delivered:
            still = _Still(should_training_stop=self.is_complete)
            silent = Replaced(trainer, control=still, log=lambda *values, **named: None)
            log = Replaced(logging.getLogger(frame.f_globals["__name__"]), disabled=True)
            for replaced in (silent, log, Replaced(trainer.callback_handler, callbacks=[])):
                self._silence.callback(replaced.undo)
            self.exits.callback(self._silence.close)

    def _arrive(self) -> None:
        """Put back what the checkpoint holds, where the loop continues; of a complete run, where it ends."""
        self._has_arrived = True
        if self.is_complete:
            self._state.start.undo_changes()
            self._state.examination.begin()
        else:
            self._silence.close()
            self._state.start.undo_changes()  # without a warning: the loop has done again what precedes its place
            self._first = [next(self._batches)]
            self.trainer.control.should_training_stop = self.trainer.control.should_epoch_stop = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._is_moved:
            return None
        frame, around = sys._getframe(1), list[Any]()
        if not self._has_given:
            holders = gc.get_referrers(self)  # a `map` or `zip` holds a tuple of its iterators
            around = [holder for holder in holders if hasattr(type(holder), "__next__") or type(holder) is tuple]
            is_other = frame is not self._frame or frame.f_code.co_flags & inspect.CO_GENERATOR
            if is_other or any(type(holder) is not enumerate for holder in around):
                raise self._refusal("takes batches through more than enumerate(), or not where it makes the iterator")
        if self.is_complete or self._epoch < self._place[0]:
            raise StopIteration
        if not self._has_arrived:
            self._arrive()
            self._in_epoch, self._is_moved = self._place[1], True
            for _ in range(self._in_epoch):  # an enumerate asks for a batch, and counts it afterwards
                [*map(next, around)]
            self._is_moved = False
        if self._in_epoch == self._size:
            self._manager.pause()  # the last step is told to the manager after all that ends the epoch
            raise StopIteration
        if self._is_untold:
            self._tell()
        if self._manager.preempted:
            self.trainer.control.should_training_stop = True
            raise StopIteration
        batch = self._first.pop() if self._first else next(self._batches)
        self._in_epoch += 1
        self._is_untold = self._has_given = True
        return batch

    def _tell(self) -> None:
        """Tell the manager that the last batch is trained, with all that the trainer did after it."""
        taken, trained = self._epoch * self._size + self._in_epoch, self._counters.trained
        if taken != trained:
            counts = f"took {taken} batches, but called training_step for {trained}"
            raise self._refusal(f"{counts}: some are left out or ahead")
        ms.Parameter = _PARAMETER  # mindone 0.5's num_parameters() has it as the variable of a loop
        self._is_untold = False
        self._manager.step(self._state)

    def _refusal(self, why: str) -> ResumeError:
        return ResumeError(f"the loop of {type(self.trainer).__name__} {why}, so no resume would be exact. {_INSTEAD}")


class _Still(SimpleNamespace):
    """Stands for the control: nothing is due, and nothing changes that, whatever the loop makes of an empty epoch."""

    def __getattr__(self, name: str) -> bool:
        return False

    def __setattr__(self, name: str, value: Any) -> None:
        pass
