"""Resumes ``Model.train`` and ``Model.fit`` exactly, by `CheckpointCallback`.

Guarantees: the callback refuses, before the first batch, what would make the resumed run differ (a forgotten
``initial_epoch``, other data, another K, a sinking dataset). It saves between two micro-steps; a save due at an
epoch's last micro-step is taken after the epoch's evaluation. At the end of training it commits the last state. If an
exception ends training, a save that has begun is finished. Main thread only.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn

import mindspore.dataset as ds
from mindspore.train import Callback, Model
from typing_extensions import Self

from ckptkit.core.progress import ResumePoint
from ckptkit.core.save_policy import SavePolicy
from ckptkit.errors import ResumeError
from ckptkit.manager.heartbeat import HEARTBEAT
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Mirrors, Preemption, Ranks, Saving, mirrors_of, refuse_other_types
from ckptkit.manager.process import show_log
from ckptkit.mindspore.callback.attachment import Attachment, ModelAttachment, Replaced, as_list, root_attached_to
from ckptkit.mindspore.callback.parameter_writers import acting_among
from ckptkit.mindspore.callback.session import TrainingSession, metrics_of
from ckptkit.mindspore.callback.trainer_attachment import LOOP_COUNTERS, TrainerAttachment
from ckptkit.mindspore.loop import leave_complete
from ckptkit.mindspore.state.manager import StateManager, Training
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks
from ckptkit.run.keep_policy import KeepPolicy
from ckptkit.storage import Storage, open_storage

_log = logging.getLogger("ckptkit")

# Names of StateManager's own arguments.
_OPTIONS = ("train_cell", "dataset", "frozen", "strict", "training", "ranks")
_OTHER_CALLBACKS = "callbacks"  # name of the other callbacks' state among the stateful objects


class CheckpointCallback(Callback):
    """Saves a training while it runs, and resumes it exactly.

    Either let it do everything::

        ckpt.train(model, 10, dataset)

    or call it before ``Model.train``, which has to know where to begin::

        point = ckpt.resume(model, dataset, epochs=10)
        if not point.complete:
            model.train(10, dataset, callbacks=[ckpt], initial_epoch=point.epoch)

    Its place in the list of callbacks does not matter: ``Model`` calls it after the others.

    Args:
        root: The run root, one per training: a path or a URL.
        save: When to save; default every 100 optimizer steps, and every ten minutes if that takes at most 1 %
            of the time.
        keep: What to keep; default the latest 3. With `KeepBest`, every evaluated epoch is saved too.
        storage_options: For the storage's backend.
        stateful: Objects to store, by name: with ``state_dict()`` and ``load_state_dict()``, random generators of NumPy
            and Python, or objects with parameters in them. `StateManager` says which.
        frozen: Names of the network's parameters that training never changes, or a predicate, which is called for
            those only. They are written once per attempt and shared by its checkpoints.
        strict: Refuse what cannot be resumed exactly (`nn.Dropout`, maps that draw from global generators) instead
            of warning.
        training: What ckptkit cannot see in the code of the training.
        saving: How saves are taken and reported. A callback of your own that acts within an epoch turns the window
            ``"off"``, unless its code reaches no parameter there, or `Training.read_only` has it. The loss and the norm
            of the gradients are recorded, too.
        mirror: A second root, usually remote, that follows the first one, usually a local one: a path, a URL, a
            `ckptkit.storage.Storage`, or a `Mirror` to give its options; or several of them, the nearest first.
        ranks: What matters in a job of many ranks.
        preemption: What happens after SIGTERM or SIGUSR1. Signals are watched while ``Model.train`` or ``Model.fit``
            runs.

    Raises:
        ValueError: If an option has an unknown value.
        StorageError: If a root's URL has no backend.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | Storage,
        *,
        save: SavePolicy | None = None,
        keep: KeepPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
        stateful: Mapping[str, Any] | None = None,
        frozen: Iterable[str] | Callable[[str], bool] | None = None,
        strict: bool = False,
        training: Training | None = None,
        saving: Saving | None = None,
        mirror: Mirrors = None,
        ranks: Ranks | None = None,
        preemption: Preemption | None = None,
    ) -> None:
        super().__init__()
        show_log()
        refuse_other_types(training=(training, Training))
        storage = open_storage(root, storage_options)  # opened now: a relative path depends on the current directory
        self._root = storage.url
        self._new_manager = functools.partial(
            CheckpointManager,
            storage,
            save=save,
            keep=keep,
            saving=saving,
            mirror=mirrors_of(mirror) or None,
            ranks=ranks,
            preemption=preemption,
        )
        self._new_manager()  # raises on a wrong option here, not after the model is built
        self._training = training or Training()
        self._save_evaluated = keep is not None and keep.needs_metrics
        self._stateful = dict(stateful or {})
        taken = sorted(self._stateful.keys() & {_OTHER_CALLBACKS, LOOP_COUNTERS, *_OPTIONS})
        if taken:
            raise ValueError(f"stateful= uses names that ckptkit needs itself: {', '.join(taken)}; rename them")
        self._new_state = functools.partial(
            StateManager,
            # Other iterables may be exhausted at a second resume, hence the tuple.
            frozen=frozen if frozen is None or callable(frozen) or isinstance(frozen, str) else tuple(frozen),
            strict=strict,
            training=training,
            ranks=ranks,
        )
        self._session: TrainingSession | None = None
        self._others: list[Callback] = []  # of the training that `resume` is called for, if they are known
        self._ordered: Replaced | None = None  # methods of the model that `resume` got
        self._trainer: TrainerAttachment | None = None
        self._depth = 0
        self._preempted = False

    @property
    def preempted(self) -> bool:
        """Whether a signal or `Preemption.when` ended the last training, so that it is incomplete."""
        if self._trainer is not None:
            return self._trainer.preempted
        return self._preempted if self._session is None else self._session.manager.preempted

    def resume(
        self, model: Model, dataset: ds.Dataset, epochs: int, *, checkpoint: str | int = "latest", rewind: bool = False
    ) -> ResumePoint:
        """Restore the newest usable checkpoint into ``model``, position ``dataset`` and take over the run.

        Call it before every ``Model.train`` or ``Model.fit`` with this callback, also the first time.

        Args:
            model: Made of an `AccumulationTrainCell`, or of any other train cell.
            dataset: The pipeline that ``Model.train`` will get.
            epochs: The total since epoch 0, as ``Model.train`` will get it.
            checkpoint: The checkpoint to continue from, as for `CheckpointManager.restore`.
            rewind: Go back to that checkpoint even if the run has already continued from it.

        Returns:
            Where to begin; train nothing if it is ``complete``.

        Raises:
            ResumeError: If the run could not continue exactly; says what to change.
            StateMismatchError: If the checkpoint does not fit the model; names the first leaves that differ.
            CkptKitError: Any of its other subclasses, as for `CheckpointManager.restore`.
            TypeError: If ``model`` or ``dataset`` is something else.
            ValueError: If ``epochs`` is not a positive number.
        """
        self._drop_session()
        callbacks, self._others = self._others, []
        self._preempted = False
        _refuse_wrong_arguments("resume(model, dataset, epochs)", model, dataset, epochs)
        cell = model.train_network
        other_callbacks = OtherCallbacks()
        named = {_OTHER_CALLBACKS: other_callbacks, **self._stateful}
        state = self._new_state(cell, dataset, **named)
        position = state.position
        assert position is not None  # noqa: S101 - it was given a dataset
        state.has_all_epochs = lambda: position.at(state.progress().batches_delivered)[0] >= epochs
        manager = self._new_manager()
        try:
            point = manager.restore(state, checkpoint=checkpoint, rewind=rewind, watch_preemption=False)
        except BaseException:
            position.leave()
            raise
        if point.checkpoint is not None and state.is_over():
            leave_complete(manager, state, point, epochs)
            # As at the first batch of a training, which does not come.
            other_callbacks.bind(callbacks)
            state.examination.judge_callbacks(callbacks, metrics_of(model), acting_among(callbacks))
            other_callbacks.restore()
            state.examination.begin()
            return replace(point, complete=True)
        self._session = TrainingSession(
            *(manager, state, other_callbacks),
            dataset=dataset,
            epochs=epochs,
            point=point,
            read_only=self._training.read_only,
            metrics=metrics_of(model),
        )
        own = vars(model)
        starts = {name: functools.partial(self._start_last, model, name, own.get(name)) for name in ("train", "fit")}
        self._ordered = Replaced(model, **starts)
        return point

    def train(
        self,
        model: Model,
        epochs: int,
        dataset: ds.Dataset,
        *,
        checkpoint: str | int = "latest",
        rewind: bool = False,
        **kwargs: Any,
    ) -> ResumePoint:
        """Call `resume`, then ``Model.train`` from there with this callback last; ``kwargs`` are passed to it.

        Returns:
            The point that training continued from.

        Raises:
            ValueError: If ``initial_epoch`` is among ``kwargs``: `resume` decides it.
            CkptKitError: As `resume`, and what the saves raise.
            Preempted: After a signal; see `Preemption`.
        """
        _refuse_wrong_arguments("train(model, epochs, dataset)", model, dataset, epochs)
        callbacks = _take_callbacks(kwargs)
        start = functools.partial(model.train, epochs, dataset, **kwargs)
        return self._run(start, model, epochs, dataset, callbacks, checkpoint=checkpoint, rewind=rewind)

    def fit(
        self,
        model: Model,
        epochs: int,
        dataset: ds.Dataset,
        valid_dataset: ds.Dataset,
        *,
        checkpoint: str | int = "latest",
        rewind: bool = False,
        **kwargs: Any,
    ) -> ResumePoint:
        """Call `resume`, then ``Model.fit`` from there with this callback last; as `train`."""
        _refuse_wrong_arguments("fit(model, epochs, dataset, valid_dataset)", model, dataset, epochs)
        callbacks = _take_callbacks(kwargs)
        start = functools.partial(model.fit, epochs, dataset, valid_dataset, **kwargs)
        return self._run(start, model, epochs, dataset, callbacks, checkpoint=checkpoint, rewind=rewind)

    def attach(self, trainer: Any = None, *, checkpoint: str | int = "latest", rewind: bool = False) -> Attachment:
        """Resume and save the next ``Model.train`` or ``Model.fit`` of this process, whoever calls it.

        For a framework that calls ``Model`` itself; or, with a ``trainer`` that has a loop of its own, the next call of
        its ``train()``. It is in force at once, so one line before the training is enough; as a context manager, it
        ends with the block::

            with ckpt.attach():
                trainer.train()

        A training that is complete is not started again. ``initial_epoch`` and this callback's place in the list are
        set as by `train`.

        Args:
            trainer: Follows the protocol of Hugging Face's ``Trainer``, with cells and a MindSpore pipeline, as that of
                mindone does. None for a framework that calls ``Model``.
            checkpoint: As for `resume`.
            rewind: As for `resume`.

        Returns:
            What is attached, with ``detach()``.

        Raises:
            ResumeError: If another callback is attached. The training raises it at its start if it has an
                ``initial_epoch`` of its own or is the second one, also within the first; and ``with`` raises it if no
                training came. Without ``with``, the log says so when the process ends.
        """
        if trainer is not None:
            restore = functools.partial(CheckpointManager.restore, checkpoint=checkpoint, rewind=rewind)
            of_callback = {"new_manager": self._new_manager, "new_state": self._new_state, "stateful": self._stateful}
            self._trainer = TrainerAttachment(
                self._root, trainer, restore=restore, training=self._training, **of_callback
            )
            return self._trainer
        run = functools.partial(self._run, checkpoint=checkpoint, rewind=rewind)
        return ModelAttachment(self._root, self, run, lambda: None if self._session is None else self._session.point)

    def __enter__(self) -> Self:
        # Model.fit enters and leaves every callback again for each evaluation.
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._drop_session(error)

    def on_train_begin(self, run_context: Any) -> None:
        """Check that ``Model`` begins where `resume` said, and finish the restore."""
        session = self._session or self._refuse()
        session.begin(run_context.original_args(), self)

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """At the first epoch, restore the state of the other callbacks."""
        session = self._session or self._refuse()
        session.begin_epoch()

    def on_train_step_begin(self, run_context: Any) -> None:
        """Show ``ckptkit run`` that the next batch has been delivered."""
        if HEARTBEAT.is_shown:
            HEARTBEAT.begin_step()

    def on_train_step_end(self, run_context: Any) -> None:
        """Save if one is due; a save at an epoch's last batch waits for the end of the epoch."""
        session = self._session or self._refuse()
        session.end_step(run_context)

    def on_train_epoch_end(self, run_context: Any) -> None:
        """Save if one is due after a whole epoch, with the metrics of its evaluation."""
        session = self._session or self._refuse()
        session.end_epoch(run_context, save_evaluated=self._save_evaluated)

    def on_eval_begin(self, run_context: Any) -> None:
        """Run the fence, so that other callbacks can swap weights around an evaluation."""
        if self._session is not None:
            self._session.manager.fence()

    def on_train_end(self, run_context: Any) -> None:
        """Commit the last state."""
        session = self._session or self._refuse()
        session.end()

    def _refuse(self) -> NoReturn:
        raise ResumeError(
            "call ckpt.resume(model, dataset, epochs) before Model.train and pass its epoch as initial_epoch, or use "
            "ckpt.train(model, epochs, dataset), which does both"
        )

    def _start_last(self, model: Model, name: str, own: Callable[..., None] | None, *args: Any, **kwargs: Any) -> None:
        """Call a method with this callback at the end of the list that has it: what others change is saved, too."""
        start = own or functools.partial(getattr(type(model), name), model)  # as it is now: an attachment replaces it
        values = [value if isinstance(value, list | tuple) else [value] for value in (*args, *kwargs.values())]
        is_given = any(isinstance(item, CheckpointCallback) for value in values for item in value)
        if self._session is not None and not is_given and root_attached_to(Model) is None:
            raise ResumeError(
                f"this training is called without the CheckpointCallback that has resumed it, so {self._root} would "
                "get none of it: pass callbacks=[ckpt]"
            )

        def ordered(value: Any) -> Any:
            if isinstance(value, list | tuple) and any(item is self for item in value):
                return [*(item for item in value if item is not self), self]
            return value

        start(*map(ordered, args), **{name: ordered(value) for name, value in kwargs.items()})

    def _drop_session(self, error: BaseException | None = None) -> None:
        if self._ordered is not None:
            self._ordered.undo()
        session, self._session = self._session, None
        if session is not None:
            self._depth = 0
            self._preempted = session.manager.preempted
            session.leave(error)

    def _run(
        self,
        start: Callable[..., None],
        model: Model,
        epochs: int,
        dataset: ds.Dataset,
        callbacks: list[Callback],
        *,
        checkpoint: str | int,
        rewind: bool,
    ) -> ResumePoint:
        """Resume, then call ``start`` with the callbacks and the epoch to begin at, if there is something to train."""
        self._others = others = [callback for callback in callbacks if callback is not self]
        point = self.resume(model, dataset, epochs, checkpoint=checkpoint, rewind=rewind)
        if not point.complete:
            try:
                start(callbacks=[*others, self], initial_epoch=point.epoch)
            except BaseException as error:
                self._drop_session(error)  # also for a failure before any callback was entered
                raise
        return point


def _take_callbacks(kwargs: dict[str, Any]) -> list[Callback]:
    """Take the callbacks out of the arguments for ``Model``; ValueError for one that the checkpoint decides."""
    if "initial_epoch" in kwargs:
        raise ValueError("initial_epoch is decided by the checkpoint; leave it out")
    return as_list(kwargs.pop("callbacks", None))


def _refuse_wrong_arguments(call: str, model: Model, dataset: ds.Dataset, epochs: int) -> None:
    """Raise TypeError or ValueError that shows the ``call``, because its argument order is easily confused."""
    if not isinstance(model, Model) or not isinstance(dataset, ds.Dataset):
        raise TypeError(
            f"{call} takes a mindspore.train.Model and a mindspore.dataset pipeline, got "
            f"{type(model).__name__} and {type(dataset).__name__}"
        )
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ValueError(f"{call}: epochs is the total since epoch 0 and at least 1, got {epochs!r}")
