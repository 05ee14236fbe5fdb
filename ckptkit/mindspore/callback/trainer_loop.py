"""Feeds a trainer's own loop from the batch that the last start has reached, by `TrainerLoop`.

The loop counts its epochs in a ``for`` statement, which cannot be set from outside. So a start that resumes gives the
loop an empty epoch for each one that is done; no callback runs meanwhile. At its place the loop's variables are put
back, the ``enumerate`` around the batches is moved on, and the observer puts back what training changes in objects.

Guarantees: the next batch is the next one, with the trainer's state, its callbacks and its loop as in an uninterrupted
run. A save is taken when the loop asks for another batch, so it has all that the trainer did after the last one; what
belongs to the end of an epoch, such as an evaluation, is done before a save there. A loop that takes batches ahead,
leaves some out, hands them through other iterators, or ends an epoch early is refused. Main thread only.
"""

from __future__ import annotations

import collections
import copy
import gc
import inspect
import itertools
import logging
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn
from typing_extensions import Self

from ckptkit.core.progress import ResumePoint
from ckptkit.errors import ResumeError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.mindspore.callback.replaced import Replaced
from ckptkit.mindspore.callback.step_metrics import loss_of
from ckptkit.mindspore.data.pipeline_position import DatasetPosition
from ckptkit.mindspore.data.resumable import Resumable, batches_of
from ckptkit.mindspore.observe.frame_variables import set_variables, variables_of
from ckptkit.mindspore.observe.liveness import live_names
from ckptkit.mindspore.observe.values import ITERATORS
from ckptkit.mindspore.state.holders import Reporting, fits
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.mindspore.state.options import Training

_PARAMETER = ms.Parameter
_NAME = "trainer_loop"  # of the counters among the stateful objects
_SUM = "tr_loss"  # the loop's variable that has the sum of the losses
_OF_TRAINER = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos")
_STOPS = ("should_training_stop", "should_epoch_stop")  # of its control; a resume, of more epochs, goes on
_INSTEAD = "Write the loop with CheckpointManager instead, as docs/exactness.md shows"


class LoopCounters(Reporting):
    """Stores what a trainer counts in its loop's variables, and its sums for the log; is its `CycleAdapter`, too.

    Attributes:
        trained: Micro-steps since epoch 0, as the trainer called ``training_step``.
        updates: The trainer's ``global_step`` of the checkpoint.
        frame: Runs the loop; None before it.
        has_returned: Whether the loop has ended, so that the trainer has added its sum of losses to its own.
    """

    # On CPU, MindSpore may round a loss otherwise in the first steps of a process; the doctor notes that of losses.
    reported = frozenset(("sums", "variables"))

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.trained = self.updates = 0
        self.frame: FrameType | None = None
        self.has_returned = False
        self._names: frozenset[str] = frozenset()
        self._waits = False  # whether a state was loaded and not put back
        self._began: Mapping[str, Any] = {}
        self._stored: Mapping[str, Any] = {"sums": {}, "variables": {}}

    @property
    def accumulation_steps(self) -> int:
        """K of the trainer's arguments."""
        return int(self._trainer.args.gradient_accumulation_steps)

    @property
    def micro_step(self) -> int:
        """Micro-steps of the running cycle: the trainer's cycles do not end with an epoch."""
        return self.trained % self.accumulation_steps

    def state_dict(self) -> dict[str, Any]:
        """Return plain values; of the variables, those that the loop reads and has changed."""
        if self._waits:
            return {**self._stored}
        now, kept = self.variables(), self._stored["variables"]
        variables = {name: now[name] for name in self._names & now.keys() if fits(now[name])}
        changed = {n: v for n, v in variables.items() if n in kept or v is not self._began.get(n)}
        if self.has_returned and _SUM in changed:
            changed[_SUM] = changed[_SUM] - changed[_SUM]
        plain = {name: value.asnumpy() if isinstance(value, ms.Tensor) else value for name, value in changed.items()}
        sums = {name: getattr(self._trainer, name) for name in _OF_TRAINER if hasattr(self._trainer, name)}
        return {
            "trained": self.trained,
            "updates": self._trainer.state.global_step,
            "sums": sums,
            "variables": plain,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep the state for `put_back`."""
        self.trained, self.updates, self._stored, self._waits = state["trained"], state["updates"], state, True

    def variables(self) -> dict[str, Any]:
        """Return the loop's variables, also after its end."""
        return {} if self.frame is None else variables_of(self.frame)

    def note_live(self) -> None:
        """Note which variables the loop reads before it writes them, as it asks for a batch."""
        assert self.frame is not None  # noqa: S101 - it asks
        self._names = self._names or live_names(self.frame)

    def put_back(self) -> None:
        """Give the trainer and its loop what the checkpoint holds, once the loop is at its place."""
        assert self.frame is not None  # noqa: S101 - it has begun
        self._began, self._waits = self.variables(), False
        variables, code = self._stored["variables"], self.frame.f_code
        if unknown := variables.keys() - {*code.co_varnames, *code.co_cellvars}:
            raise ResumeError(
                f"{code.co_name}() of {type(self._trainer).__name__} has no variable {', '.join(sorted(unknown))}, "
                "which the run's checkpoint holds. Continue with the version of the trainer that the run began with"
            )
        is_tensor = {name: isinstance(self._began.get(name), ms.Tensor) for name in variables}
        set_variables(self.frame, {n: ms.Tensor(v) if is_tensor[n] else v for n, v in variables.items()})
        for name, value in self._stored["sums"].items():
            setattr(self._trainer, name, value)


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
        ValueError: If ``stateful`` uses the name of the trainer's counters.
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
        self._trainer: Any = trainer
        self._kind = type(trainer).__name__
        self._new_manager, self._new_state, self._restore = new_manager, new_state, restore
        self._training, self._stateful = training, stateful
        self._counters = LoopCounters(trainer)
        self._loader: ds.Dataset | None = None
        self._state: StateManager | None = None
        self._batches: Generator[Any, None, None] | None = None
        self._first: list[Any] = []  # the batch that was made before the loop asked for it
        self._place = 0, 0  # the epoch and the batch in it where this start trains first
        self._size = 0  # of an epoch
        self._epoch, self._in_epoch = -1, 0
        self._delivered = 0
        self._untold = False  # whether a batch was given and the manager was not told that it is done
        self._has_asked = self._moves = False  # whether the loop asked for a batch; whether its `enumerate` is moved on
        self.point: ResumePoint | None = None
        self.manager: CheckpointManager | None = None
        get, train = trainer.get_train_dataloader, trainer.training_step
        replacements = {"get_train_dataloader": self._given(get), "training_step": self._counted(train)}
        self._replaced = Replaced(trainer, **replacements)
        self._quiet: list[Replaced] = []  # until the loop is at its place

    @property
    def is_complete(self) -> bool:
        """Whether nothing was left to train."""
        return self.point is not None and self.point.complete

    @property
    def preempted(self) -> bool:
        """Whether a signal or `Preemption.when` ended the training."""
        return self.manager is not None and self.manager.preempted

    def end(self) -> None:
        """Commit the last state, once ``train`` has returned; ResumeError if the loop never came to its place."""
        if self.manager is None or self._state is None or self.point is None:
            raise ResumeError(
                f"{self._kind}.train() did not call create_dict_iterator of what get_train_dataloader() returned, so "
                f"nothing was resumed or saved. {_INSTEAD}"
            )
        if self.is_complete:
            self._state.trained()
            self.manager.declare_complete()
            return
        if self._quiet:
            raise ResumeError(
                f"the loop of {self._kind} ended after {self._epoch + 1} empty epochs, and the run continues in epoch "
                f"{self._place[0]}: it does not call on_epoch_end of callback_handler after each epoch. {_INSTEAD}"
            )
        if self.manager.preempted:
            return  # the final save was decided when training stopped, and the grace period may be over
        self._counters.has_returned = True
        trainer = self._trainer
        if trainer.control.should_training_stop and trainer.state.global_step < trainer.state.max_steps:
            self._state.end(f"the trainer stopped after {trainer.state.global_step} optimizer steps")
        if self._untold:
            self._tell()  # after that: a state that this saves is not saved again
        self.manager.save_final(self._state)

    def leave(self, *error: Any) -> None:
        """Give the trainer its own methods back and close the run; an exception in flight is never hidden."""
        self._end_quiet()
        self._replaced.undo()
        self._counters.frame = None  # which holds all variables of the loop
        if self._batches is not None:
            self._batches.close()  # the pipeline reads ahead, and may draw, for as long as its iterator lives
        if self._state is not None:
            self._state.release_data()
        if self.manager is not None:
            self.manager.__exit__(*error)

    def _given(self, get: Callable[..., Any]) -> Callable[..., Any]:
        def get_train_dataloader(*args: Any, **kwargs: Any) -> Any:
            loader = get(*args, **kwargs)
            if self._loader is not None:
                return loader
            if not isinstance(loader, ds.Dataset):
                raise ResumeError(
                    f"get_train_dataloader() returned a {type(loader).__name__}, and only a MindSpore pipeline can be "
                    f"given to a trainer's loop at a position. {_INSTEAD}"
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
            self._counters.trained += 1
            if self._state is not None and self.manager is not None:
                self._state.observe_step(self._state.last_batch, returned)
                self.manager.observe(loss_of(returned))
            return returned

        return training_step

    def _begin_epoch(self, options: dict[str, Any]) -> _Epoch:
        if self._state is None:
            self._open(sys._getframe(2), options)
        elif self._untold:
            if self._in_epoch != self._size:
                raise ResumeError(
                    f"epoch {self._epoch} ended after {self._in_epoch} of its {self._size} batches "
                    "(should_epoch_stop), and no position after it could be resumed. Stop the training instead "
                    "(should_training_stop), or give the trainer a dataset of the size that an epoch should have"
                )
            self._tell()
            self._state.ask_batch()  # before the callbacks' on_epoch_begin, of which it would say that it comes late
        self._epoch += 1
        self._in_epoch = 0
        if self.is_complete or (self._epoch, 0) == self._place:
            self._arrive()  # before on_epoch_begin, too
        return _Epoch(self._next)

    def _open(self, frame: FrameType, options: dict[str, Any]) -> None:
        trainer, loader, counters = self._trainer, self._loader, self._counters
        assert loader is not None  # noqa: S101 - the iterator was asked of it
        if variables_of(frame).get("self") is not trainer or frame.f_code.co_flags & inspect.CO_GENERATOR:
            raise ResumeError(f"{frame.f_code.co_name}() takes the batches, and is no loop of {self._kind}. {_INSTEAD}")
        epochs = trainer.state.num_train_epochs
        position = DatasetPosition(loader, augmentation=self._training.augmentation)
        batches = Resumable(position, epochs, lambda: batches_of(position, epochs, "create_dict_iterator", **options))
        cycle = self._training.cycle or (None if counters.accumulation_steps == 1 else counters)
        training = replace(self._training, augmentation=None, cycle=cycle)
        state = self._new_state(_cells_of(trainer), batches, training=training, **{_NAME: counters}, **self._stateful)
        manager = self.manager = self._new_manager()
        self._state, counters.frame = state, frame
        state.has_all_epochs = lambda: (
            batches.is_over() or max(counters.updates, trainer.state.global_step) >= trainer.state.max_steps
        )
        point = self._restore(manager, state)
        callbacks = trainer.callback_handler.callbacks
        state.judge_callbacks([trainer.state, trainer.control, *callbacks], [], callbacks)
        self._size, self._delivered = position.size, point.batches_delivered
        self._place = position.at(point.batches_delivered)
        self.point = point = replace(point, complete=bool(point.batches_delivered) and state.is_over())
        self._batches = iter(batches)
        if point.batches_delivered:
            silent = _Silent(callbacks, ends=point.complete)
            self._quiet = [
                Replaced(trainer, callback_handler=silent, log=lambda *values, **named: None),
                Replaced(logging.getLogger(frame.f_globals["__name__"]), disabled=True),
            ]

    def _arrive(self) -> None:
        """Put back what the checkpoint holds, where the loop continues; of a complete run, where it ends."""
        assert self._state is not None  # noqa: S101 - opened
        assert self._batches is not None  # noqa: S101
        if not self.is_complete:
            self._end_quiet()
        self._state.restore_again()
        if self.is_complete:
            self._state.hand_out_batch()
        else:
            self._first = [next(self._batches)]
            for name in _STOPS:
                setattr(self._trainer.control, name, False)
        self._counters.put_back()

    def _next(self, epoch: _Epoch) -> Any:
        if self._moves:
            return None
        assert self._batches is not None  # noqa: S101 - an epoch has begun
        assert self.manager is not None  # noqa: S101
        enumerates = [] if self._has_asked else self._enumerates(epoch)
        if self.is_complete or self._epoch < self._place[0]:
            raise StopIteration
        self._has_asked = True
        if self._quiet:
            self._arrive()
            self._in_epoch, self._moves = self._place[1], True
            for counting in enumerates:  # it asks `epoch` for each, and counts once more for the batch
                collections.deque(itertools.islice(counting, self._in_epoch), maxlen=0)
            self._moves = False
        if self._in_epoch == self._size:
            self.manager.pause()  # the last step is told to the manager after all that ends the epoch
            raise StopIteration
        if self._untold:
            self._tell()
        if self.preempted:
            self._trainer.control.should_training_stop = True
            raise StopIteration
        batch = self._first.pop() if self._first else next(self._batches)
        self._in_epoch += 1
        self._delivered += 1
        self._untold = True
        return batch

    def _enumerates(self, epoch: _Epoch) -> list[Any]:
        """Return the ``enumerate`` around an epoch; ResumeError if the loop takes batches in another way."""
        around = [holder for holder in gc.get_referrers(epoch) if type(holder) in ITERATORS]
        others = [type(holder).__name__ for holder in around if type(holder) is not enumerate]
        frame = sys._getframe(3)
        if others or frame is not self._counters.frame:
            raise ResumeError(
                f"the loop of {self._kind} takes its batches through {', '.join(others) or frame.f_code.co_name}, "
                f"which could not be moved to the batch of a resume. Iterate over what create_dict_iterator returns, "
                "or over enumerate() of it, in the method that calls it, or write the loop with CheckpointManager"
            )
        self._counters.note_live()
        return around

    def _tell(self) -> None:
        """Tell the manager that the last batch is trained, with all that the trainer did after it."""
        assert self._state is not None  # noqa: S101 - a batch was given
        assert self.manager is not None  # noqa: S101
        if self._counters.trained != self._delivered:
            raise ResumeError(
                f"the loop of {self._kind} took {self._delivered} batches, but called training_step for "
                f"{self._counters.trained}: it takes batches ahead or leaves some out, so a resume would skip them. "
                f"{_INSTEAD}"
            )
        ms.Parameter = _PARAMETER  # mindone 0.5's num_parameters() has it as the variable of a loop
        self._untold = False
        self.manager.step(self._state)

    def _end_quiet(self) -> None:
        for replaced in self._quiet:
            replaced.undo()
        self._quiet = []


class _Epoch:
    """Iterates over one epoch as the loop sees it."""

    def __init__(self, following: Callable[[_Epoch], Any]) -> None:
        self._following = following

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._following(self)


class _Silent:
    """Stands for the handler of the callbacks, and calls none."""

    def __init__(self, callbacks: list[Any], *, ends: bool) -> None:
        self.callbacks, self._ends = callbacks, ends

    def __getattr__(self, event: str) -> Callable[..., Any]:
        def call(args: Any, state: Any, control: Any, *others: Any, **named: Any) -> Any:
            for name in vars(control):  # else the loop would evaluate, log, or take the empty epoch for the end
                setattr(control, name, self._ends and name == _STOPS[0])
            return control

        return call


def _cells_of(trainer: Any) -> list[nn.Cell]:
    """Return the cells that train: the one that ``training_step`` gets, if the trainer has one, model, optimizer."""
    parts = [getattr(trainer, name, None) for name in ("train_model", "model", "optimizer")]
    cells = [part for part in parts if isinstance(part, nn.Cell)]
    if not cells:
        raise ResumeError(
            f"{type(trainer).__name__}.model is a {type(trainer.model).__name__} and not an nn.Cell, so its weights "
            f"are not known here. {_INSTEAD}"
        )
    return cells
