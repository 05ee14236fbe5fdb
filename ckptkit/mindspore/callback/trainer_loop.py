"""Feeds a trainer's own loop from the batch that the last start has reached, by `TrainerLoop`.

The loop keeps its place in local variables (the epoch, the step, sums), which cannot be set from outside. So a start
that resumes lets the loop *walk* to its place first: it gets empty batches, and ``training_step``, the callbacks and
the log do nothing. One cycle of an earlier epoch is enough, so a walk has as many steps as the present epoch.

Guarantees: after the walk, the loop's epoch and step, the sum of its losses, the trainer's state and the callbacks are
those of an uninterrupted run, and the next batch is the next one. A save is taken when the loop asks for another
batch, so it has all that the trainer did after the last one; what belongs to the end of an epoch, such as an
evaluation, is done before a save there.
A loop that takes batches ahead, leaves some out, or ends an epoch early is refused. Main thread only.
"""

from __future__ import annotations

import copy
import functools
import logging
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn

from ckptkit.core.progress import ResumePoint
from ckptkit.core.stack import frames_from
from ckptkit.errors import ResumeError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.mindspore.callback.replaced import Replaced
from ckptkit.mindspore.callback.step_metrics import loss_of
from ckptkit.mindspore.callback.trainer_progress import TrainerProgress
from ckptkit.mindspore.callback.trainer_walk import Walk
from ckptkit.mindspore.data.pipeline_position import DatasetPosition
from ckptkit.mindspore.data.resumable import Resumable, batches_of
from ckptkit.mindspore.observe.frame_variables import variables_of
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.mindspore.state.options import Training

_PARAMETER = ms.Parameter
_NAME = "trainer_loop"  # of the progress among the stateful objects
_SUM = "tr_loss"  # the loop's local variable that has the sum of the losses


class TrainerLoop:
    """Runs one call of ``trainer.train``.

    Args:
        trainer: Has ``args``, ``state``, ``control``, ``callback_handler``, ``model``, ``optimizer``,
            ``get_train_dataloader()`` and ``training_step()``.
        new_manager: Makes the manager of the run.
        new_state: Makes the state manager.
        restore: Restores a state manager by the manager.
        training: As for `StateManager`.
        stateful: The user's objects, by name.

    Attributes:
        point: Where the training began; None before its first epoch.
        manager: The manager; None before that.

    Raises:
        ValueError: If ``stateful`` uses the name of the trainer's progress.
    """

    def __init__(
        self,
        trainer: Any,
        *,
        new_manager: Callable[[], CheckpointManager],
        new_state: Callable[..., StateManager],
        restore: Callable[[CheckpointManager, StateManager], ResumePoint],
        training: Training,
        stateful: Mapping[str, Any],
    ) -> None:
        if _NAME in stateful:
            raise ValueError(f"stateful= uses {_NAME}, a name that ckptkit needs itself for a trainer; rename it")
        self._trainer = trainer
        self._new_manager, self._new_state, self._restore = new_manager, new_state, restore
        self._training, self._stateful = training, stateful
        self._progress = TrainerProgress(trainer, stateful.values())
        self._loader: ds.Dataset | None = None
        self._state: StateManager | None = None
        self._batches: Generator[Any, None, None] | None = None
        self._walk: Walk | None = None
        self._size = 0  # of an epoch
        self._epoch = -1
        self._in_epoch = 0  # batches of it that were given, also by earlier starts
        self._delivered = 0
        self._untold = False  # whether a batch was given and the manager was not told that it is done
        self.point: ResumePoint | None = None
        self.manager: CheckpointManager | None = None
        self._replaced = Replaced(
            trainer,
            get_train_dataloader=self._given(trainer.get_train_dataloader),
            training_step=self._counted(trainer.training_step),
        )

    @property
    def is_complete(self) -> bool:
        """Whether nothing was left to train."""
        return self.point is not None and self.point.complete

    @property
    def preempted(self) -> bool:
        """Whether a signal or `Preemption.when` ended the training."""
        return self.manager is not None and self.manager.preempted

    def end(self) -> None:
        """Commit the last state, once ``train`` has returned.

        Raises:
            ResumeError: If the trainer did not take its batches where this loop could give them.
        """
        if self.manager is None or self._state is None or self.point is None:
            raise ResumeError(
                f"{type(self._trainer).__name__}.train() did not call create_dict_iterator of what "
                "get_train_dataloader() returned, so nothing was resumed or saved. Write the loop with "
                "CheckpointManager instead, as docs/exactness.md shows"
            )
        if self._walk is not None:
            self._walk.leave()
        if self.point.complete:
            self._state.restore_again()  # what the end of the loop logged is in the checkpoint already
            self._state.trained()
            self.manager.declare_complete()
            return
        if self.manager.preempted:
            return  # the final save was decided when training stopped, and the grace period may be over
        trainer = self._trainer
        if trainer.control.should_training_stop and trainer.state.global_step < trainer.state.max_steps:
            self._state.end(f"the trainer stopped after {trainer.state.global_step} optimizer steps")
        if self._untold:
            self._tell()  # after that: a state that this saves is not saved again
        self.manager.save_final(self._state)

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give the trainer its own methods back and close the run; an exception in flight is never hidden."""
        if self._walk is not None:
            self._walk.leave()
        self._replaced.undo()
        if self._batches is not None:
            self._batches.close()  # the pipeline reads ahead, and may draw, for as long as its iterator lives
        if self._state is not None:
            self._state.release_data()
        if self.manager is not None:
            self.manager.__exit__(kind, error, trace)

    def _given(self, get: Callable[..., Any]) -> Callable[..., Any]:
        def get_train_dataloader(*args: Any, **kwargs: Any) -> Any:
            loader = get(*args, **kwargs)
            if self._loader is not None:
                return loader
            if not isinstance(loader, ds.Dataset):
                raise ResumeError(
                    f"get_train_dataloader() returned a {type(loader).__name__}, and only a MindSpore pipeline can be "
                    "given to a trainer's loop at a position. Write the loop with CheckpointManager instead, as "
                    "docs/exactness.md shows"
                )
            self._loader = loader
            shown: Any = copy.copy(loader)  # the position shadows this method of the pipeline itself
            # A plain function, since MindSpore copies the tree to make an iterator, and does not copy functions.
            shown.create_dict_iterator = lambda num_epochs=1, **options: self._begin_epoch(options)
            return shown

        return get_train_dataloader

    def _counted(self, train: Callable[..., Any]) -> Callable[..., Any]:
        def training_step(*args: Any, **kwargs: Any) -> Any:
            returned = train(*args, **kwargs)
            self._progress.trained += 1
            self._progress.returned = returned
            if self._state is not None and self.manager is not None:
                self._state.observe_step(self._state.last_batch, returned)
                self.manager.observe(loss_of(returned))
            return returned

        return training_step

    def _begin_epoch(self, options: dict[str, Any]) -> Iterator[Any]:
        if self._state is None:
            self._open(options)
        elif self._untold:
            self._refuse_short_epoch()
            self._tell()
        self._epoch += 1
        self._in_epoch = 0
        if self._walk is not None:
            self._walk.begin_epoch()
            if self._walk.has_arrived():
                self._arrive(self._walk)
        return _Epoch(self._next)

    def _next(self) -> Any:
        if self._walk is not None:
            if self._walk.has_batch():
                return self._walk.batch()
            if not self._walk.has_arrived():
                raise StopIteration  # of an earlier epoch
            self._arrive(self._walk)
        assert self.manager is not None  # noqa: S101 - an epoch has begun
        if self._in_epoch == self._size:
            self.manager.pause()  # the last step is told to the manager after all that ends the epoch
            raise StopIteration
        if self._untold:
            self._tell()
        if self.preempted or self.is_complete:
            self._trainer.control.should_training_stop = True
            raise StopIteration
        assert self._batches is not None  # noqa: S101 - opened, and not complete
        batch = next(self._batches)
        self._in_epoch += 1
        self._delivered += 1
        self._untold = True
        return batch

    def _open(self, options: dict[str, Any]) -> None:
        trainer, loader = self._trainer, self._loader
        assert loader is not None  # noqa: S101 - the iterator was asked of it
        epochs = trainer.state.num_train_epochs
        position = DatasetPosition(loader, augmentation=self._training.augmentation)
        begin = functools.partial(batches_of, position, epochs, "create_dict_iterator", **options)
        batches = Resumable(position, epochs, begin)
        counts = None if self._progress.accumulation_steps == 1 else self._progress
        training = replace(self._training, augmentation=None, cycle=self._training.cycle or counts)
        named = {_NAME: self._progress, **self._stateful}
        state = self._new_state(_cells_of(trainer), batches, training=training, **named)
        self.manager = self._new_manager()
        self._state = state
        state.has_all_epochs = lambda: batches.is_over() or trainer.state.global_step >= trainer.state.max_steps
        point = self._restore(self.manager, state)
        self._size, self._delivered = position.size, point.batches_delivered
        epoch, batch = position.at(point.batches_delivered)
        self.point = point = replace(point, complete=bool(point.batches_delivered) and state.is_over())
        if point.batches_delivered:
            module, _ = self._loop()
            log = logging.getLogger(module)
            self._walk = Walk(trainer, self._progress, epoch, batch, size=self._size, ends=point.complete, log=log)
        if not point.complete:
            self._batches = iter(batches)

    def _arrive(self, walk: Walk) -> None:
        """End the walk, or, if the run is complete, let the loop end in silence."""
        assert self._state is not None  # noqa: S101 - a walk follows a restore
        if self.is_complete:
            self._progress.again()
            return
        walk.leave()
        self._walk = None
        self._in_epoch = self._delivered - self._epoch * self._size
        self._state.restore_again()

    def _tell(self) -> None:
        """Tell the manager that the last batch is trained, with all that the trainer did after it."""
        assert self._state is not None  # noqa: S101 - a batch was given
        assert self.manager is not None  # noqa: S101
        if self._progress.trained != self._delivered:
            raise ResumeError(
                f"the loop of {type(self._trainer).__name__} took {self._delivered} batches, but called training_step "
                f"for {self._progress.trained}: it takes batches ahead or leaves some out, so a resume would skip "
                "them. Write the loop with CheckpointManager instead, as docs/exactness.md shows"
            )
        ms.Parameter = _PARAMETER  # mindone 0.5's num_parameters() has it as the variable of a loop
        _, variables = self._loop()
        self._progress.loss = variables.get(_SUM)  # after its end, the loop has added it to the trainer's own sum
        self._untold = False
        self.manager.step(self._state)

    def _loop(self) -> tuple[str, Mapping[str, Any]]:
        """Return the module and the variables of the trainer's loop; none if it does not run."""
        for frame in frames_from(sys._getframe(1)):
            module = frame.f_globals.get("__name__", "")
            if module != __name__ and (own := variables_of(frame)).get("self") is self._trainer:
                return module, own
        return "", {}

    def _refuse_short_epoch(self) -> None:
        if self._in_epoch != self._size:
            raise ResumeError(
                f"epoch {self._epoch} ended after {self._in_epoch} of its {self._size} batches (should_epoch_stop), "
                "and no position after it could be resumed. Stop the training instead (should_training_stop), or give "
                "the trainer a dataset of the size that an epoch should have"
            )


class _Epoch:
    """Iterates over one epoch as the loop sees it."""

    def __init__(self, following: Callable[[], Any]) -> None:
        self._following = following

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._following()


def _cells_of(trainer: Any) -> list[nn.Cell]:
    """Return the cells that train: the one that ``training_step`` gets, if the trainer has one, model, optimizer."""
    found = [getattr(trainer, name, None) for name in ("train_model", "model", "optimizer")]
    cells = [one for one in found if isinstance(one, nn.Cell)]
    if not cells:
        raise ResumeError(
            f"{type(trainer).__name__}.model is a {type(trainer.model).__name__} and not an nn.Cell, so its weights "
            "are not known here. Write the loop with CheckpointManager instead, as docs/exactness.md shows"
        )
    return cells
