"""`CheckpointCallback`: exact resume for ``Model.train`` and ``Model.fit``.

Guarantees: what would make the resumed run differ (a forgotten ``initial_epoch``, other data, another K, a
sinking dataset) is refused before the first batch; a save is taken between two micro-steps, the one due at an
epoch's last micro-step after the epoch's evaluation; when training ends its last state is committed; when it
is broken off by an exception, a save that has begun is finished. Main thread only.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal

import mindspore.dataset as ds
from mindspore.train import Callback, LearningRateScheduler, Model
from typing_extensions import Self

from ckptkit.console import show_log
from ckptkit.errors import ResumeError
from ckptkit.manager import CheckpointManager
from ckptkit.mindspore.companions import Companions
from ckptkit.mindspore.rng import inexact_cells
from ckptkit.mindspore.state import Stateful, StateManager
from ckptkit.policies import KeepPolicy, SavePolicy
from ckptkit.progress import ResumePoint
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")

_COMPANIONS = "callbacks"  # the name that the other callbacks' state has among the stateful objects


class CheckpointCallback(Callback):
    """Saves a training while it runs, and resumes it exactly.

    Either let it do everything::

        ckpt.train(model, 10, dataset)

    or call it before ``Model.train``, which has to know where to begin::

        point = ckpt.resume(model, dataset, epochs=10)
        if not point.complete:
            model.train(10, dataset, callbacks=[ckpt], initial_epoch=point.epoch)

    Put it last in the list of callbacks.

    Args:
        root: The run root, one per training: a path or a URL.
        save: When to save; default every 100 optimizer steps.
        keep: What to keep; default the latest 3. With `KeepBest`, every evaluated epoch is saved too.
        stateful: Objects with ``state_dict()`` and ``load_state_dict()`` to store, by name.
        frozen: Parameters that training never changes, as for `StateManager`.
        when_busy: As for `CheckpointManager`.
        on_save_error: As for `CheckpointManager`.
        strict: Refuse to train what cannot be resumed exactly, instead of warning.
        storage_options: As for `CheckpointManager`.

    Raises:
        ValueError: If an option is none of those named.
        StorageError: If the root's URL has no backend.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | Storage,
        *,
        save: SavePolicy | None = None,
        keep: KeepPolicy | None = None,
        stateful: Mapping[str, Stateful] | None = None,
        frozen: Iterable[str] | Callable[[str], bool] | None = None,
        when_busy: Literal["skip", "wait"] = "skip",
        on_save_error: Literal["warn", "raise"] = "warn",
        strict: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._new_manager = functools.partial(
            CheckpointManager,
            root,
            save=save,
            keep=keep,
            when_busy=when_busy,
            on_save_error=on_save_error,
            storage_options=storage_options,
        )
        self._new_manager()  # so that a wrong option is an error here and not after the model is built
        self._save_evaluated = keep is not None and keep.needs_metrics
        self._stateful = dict(stateful or {})
        if _COMPANIONS in self._stateful:
            raise ValueError(f"the name {_COMPANIONS!r} is taken by the state of the other callbacks")
        self._frozen = frozen
        self._strict = strict
        self._session: _Session | None = None
        self._depth = 0
        show_log()

    def resume(
        self, model: Model, dataset: ds.Dataset, epochs: int, *, checkpoint: str = "latest", rewind: bool = False
    ) -> ResumePoint:
        """Restore the newest usable checkpoint into ``model``, position ``dataset``, take the run over.

        Call it before every ``Model.train`` or ``Model.fit`` with this callback, also the first time.

        Args:
            model: Made of an `AccumulationTrainCell`, or of anything else that trains.
            dataset: The pipeline that ``Model.train`` will get.
            epochs: The total since epoch 0, as ``Model.train`` will get it.
            checkpoint: ``"latest"``, or the name of one to go on from.
            rewind: With a name: go back to it even if the run already went on from there.

        Returns:
            Where to begin; train nothing if it is ``complete``.

        Raises:
            ResumeError: If the run could not continue exactly; says what to change.
            StateMismatchError: If the checkpoint does not fit the model; names every leaf.
            CkptKitError: Any other of the tree, as for `CheckpointManager.restore`.
        """
        cell = model.train_network
        self._judge(inexact_cells(cell))
        companions = Companions()
        state = StateManager(cell, dataset, frozen=self._frozen, **{_COMPANIONS: companions, **self._stateful})
        manager = self._new_manager()
        try:
            point = manager.restore(state, checkpoint=checkpoint, rewind=rewind)
            called = state.progress().batches_delivered
            if called != point.batches_delivered:
                raise ResumeError(
                    f"there is no checkpoint to resume, but the train cell was called {called} times already. "
                    "Build a new one for another run, or give the root of the run that it belongs to."
                )
        except BaseException:
            state.release_data()
            raise
        state.prepare_data()
        assert state.position is not None  # noqa: S101 - it was given a dataset
        size = state.position.size
        if state.ended is not None or point.batches_delivered >= epochs * size:
            why = state.ended or f"{point.batches_delivered} batches are {point.batches_delivered // size} epochs"
            _log.info("training is complete (%s); nothing to do. %s is restored.", why, point.checkpoint)
            state.iterator_made()
            manager.close()
            self._session = None
            return ResumePoint(**{**vars(point), "complete": True})
        if point.checkpoint is None:
            _log.info("starting afresh at %s", manager.url)
        else:
            _log.info(
                "resuming from %s: epoch %d, batch %d, after %d optimizer steps, micro-step %d of its cycle",
                *(point.checkpoint, point.epoch, point.batch, point.optimizer_step, point.micro_step),
            )
        self._session = _Session(manager, state, companions, dataset=dataset, epochs=epochs, point=point)
        return point

    def train(
        self,
        model: Model,
        epochs: int,
        dataset: ds.Dataset,
        *,
        checkpoint: str = "latest",
        rewind: bool = False,
        **kwargs: Any,
    ) -> ResumePoint:
        """`resume`, then ``Model.train`` from there with this callback last; ``kwargs`` go to it.

        Returns:
            The point that training went on from.

        Raises:
            ValueError: If ``initial_epoch`` is among ``kwargs``: it is decided here.
            CkptKitError: As `resume`, and what the saves raise.
        """
        callbacks = self._callbacks(kwargs)
        point = self.resume(model, dataset, epochs, checkpoint=checkpoint, rewind=rewind)
        if not point.complete:
            model.train(epochs, dataset, callbacks=callbacks, initial_epoch=point.epoch, **kwargs)
        return point

    def fit(
        self,
        model: Model,
        epochs: int,
        dataset: ds.Dataset,
        valid_dataset: ds.Dataset,
        *,
        checkpoint: str = "latest",
        rewind: bool = False,
        **kwargs: Any,
    ) -> ResumePoint:
        """`resume`, then ``Model.fit`` from there with this callback last; as `train`."""
        callbacks = self._callbacks(kwargs)
        point = self.resume(model, dataset, epochs, checkpoint=checkpoint, rewind=rewind)
        if not point.complete:
            model.fit(epochs, dataset, valid_dataset, callbacks=callbacks, initial_epoch=point.epoch, **kwargs)
        return point

    def __enter__(self) -> Self:
        # Model.fit enters and leaves every callback once more for each evaluation.
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._depth -= 1
        if self._depth > 0 or self._session is None:
            return
        session, self._session = self._session, None
        session.leave(kind, error, trace)

    def on_train_begin(self, run_context: Any) -> None:
        """Check that ``Model`` begins where `resume` said, and put the last things in place."""
        session = self._active()
        session.begin(run_context.original_args(), self)

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """At the first epoch, hand the other callbacks their state back."""
        self._active().begin_epoch(run_context.original_args())

    def on_train_step_end(self, run_context: Any) -> None:
        """Save if one is due; at an epoch's last batch that waits for the end of the epoch."""
        self._active().end_step(run_context.original_args(), stopping=run_context.get_stop_requested())

    def on_train_epoch_end(self, run_context: Any) -> None:
        """Save if one is due after a whole epoch, with the metrics of its evaluation."""
        self._active().end_epoch(run_context.original_args(), save_evaluated=self._save_evaluated)

    def on_train_end(self, run_context: Any) -> None:
        """Commit the last state."""
        self._active().end()

    def _active(self) -> _Session:
        if self._session is None:
            raise ResumeError(
                "call ckpt.resume(model, dataset, epochs) before Model.train and pass its epoch as "
                "initial_epoch, or use ckpt.train(model, epochs, dataset), which does both"
            )
        return self._session

    def _callbacks(self, kwargs: dict[str, Any]) -> list[Callback]:
        if "initial_epoch" in kwargs:
            raise ValueError("initial_epoch is decided by the checkpoint; leave it out")
        given = kwargs.pop("callbacks", None) or []
        others = [given] if isinstance(given, Callback) else list(given)
        return [*(one for one in others if one is not self), self]

    def _judge(self, inexact: list[str]) -> None:
        if not inexact:
            return
        what = f"these cells draw random numbers that no checkpoint can bring back: {', '.join(inexact)}"
        if self._strict:
            raise ResumeError(f"{what}. Remove them, or allow it with strict=False.")
        _log.warning("%s. The resumed run will not be bit-exact.", what)


class _Session:
    """One ``Model.train`` or ``Model.fit``, from `CheckpointCallback.resume` to its end."""

    def __init__(
        self,
        manager: CheckpointManager,
        state: StateManager,
        companions: Companions,
        *,
        dataset: ds.Dataset,
        epochs: int,
        point: ResumePoint,
    ) -> None:
        assert state.position is not None  # noqa: S101 - CheckpointCallback always gives a dataset
        self.manager = manager
        self._state = state
        self._companions = companions
        self._dataset = dataset
        self._epochs = epochs
        self._point = point
        self._size = state.position.size
        self._begun = False
        self._metrics: tuple[int, dict[str, float]] = (-1, {})

    def begin(self, params: Any, me: Callback) -> None:
        self._refuse_other_training(params)
        callbacks = [one for one in params.list_callback if isinstance(one, Callback) and one is not me]
        self._companions.bind(callbacks, self._state.stateful_objects())
        self._refuse_late_callbacks(list(params.list_callback), me)
        if params.optimizer is None:
            # Model(cell) leaves it empty, and MindSpore's learning-rate callbacks then fail.
            params.optimizer = getattr(self._state.cell, "optimizer", None)
        params.cur_step_num = self._point.batches_delivered
        self._state.count_delivered(self._point.batches_delivered)
        self._state.iterator_made()

    def begin_epoch(self, params: Any) -> None:
        if self._begun:
            return
        if params.cur_epoch_num != self._point.epoch + 1:
            raise ResumeError(_wrong_epoch(self._point.epoch, params.cur_epoch_num - 1))
        self._companions.restore()
        if self._point.batch:
            # The other callbacks' on_train_epoch_begin came a second time in this epoch; what they drew is undone.
            self._state.restore_random_state()
        self._begun = True

    def end_step(self, params: Any, *, stopping: bool) -> None:
        self._state.count_delivered(params.cur_step_num)
        if not params.cur_step_num % self._size:
            return
        if stopping:
            # Now, because on_train_epoch_end follows, where other callbacks take this half epoch for a whole one.
            self.manager.save_final(self._state)
        else:
            self.manager.step(self._state)

    def end_epoch(self, params: Any, *, save_evaluated: bool) -> None:
        # request_stop ends an epoch early and still gets here; that half epoch was dealt with at its last step.
        if params.cur_step_num % self._size:
            return
        metrics = _numbers(params.get("eval_results") or {})
        self._metrics = (params.cur_step_num, metrics)
        self._state.ended = self._companions.early_stop()
        if metrics and save_evaluated:
            self.manager.save(self._state, metrics)
        else:
            self.manager.step(self._state, metrics)

    def end(self) -> None:
        at, metrics = self._metrics
        delivered = self._state.progress().batches_delivered
        name = self.manager.save_final(self._state, metrics if at == delivered else {})
        _log.info(
            "training ended after %d batches; %s is committed; %d due saves were skipped",
            *(delivered, name, self.manager.skipped_saves),
        )

    def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state.release_data()
        self.manager.__exit__(kind, error, trace)

    def _refuse_other_training(self, params: Any) -> None:
        if params.train_network is not self._state.cell or params.train_dataset is not self._dataset:
            raise ResumeError("resume() was called with another model or dataset than Model.train got")
        if params.dataset_sink_mode:
            raise ResumeError(
                "with a sinking dataset, steps are counted by sink and mid-epoch positions are lost; "
                "pass dataset_sink_mode=False"
            )
        begins = self._epochs - params.epoch_num
        if begins != self._point.epoch:
            raise ResumeError(_wrong_epoch(self._point.epoch, begins))

    def _refuse_late_callbacks(self, callbacks: list[Callback], me: Callback) -> None:
        after = callbacks[[one is me for one in callbacks].index(True) + 1 :]
        stored = self._state.stateful_objects()
        late = [
            type(one).__name__
            for one in after
            if self._companions.is_adapted(one)
            or isinstance(one, LearningRateScheduler)  # its state is the optimizer's learning rate
            or any(one is other for other in stored)
        ]
        if late:
            raise ResumeError(
                f"{', '.join(late)} would change after its state was saved; put CheckpointCallback last"
            )


def _wrong_epoch(wanted: int, found: int) -> str:
    return (
        f"training would begin at epoch {found}, but the run goes on in epoch {wanted}: "
        f"pass initial_epoch={wanted} (point.epoch), and to resume() the same number of epochs as to Model.train"
    )


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are single numbers; others, such as a confusion matrix, cannot rank anything."""
    found = {}
    for name, value in metrics.items():
        if value is None or isinstance(value, str | bytes | Mapping | list | tuple):
            continue
        if getattr(value, "size", 1) == 1:
            found[name] = float(value.item() if hasattr(value, "item") else value)
    return found
