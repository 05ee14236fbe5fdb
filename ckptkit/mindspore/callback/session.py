"""Does the work of each hook for one ``Model.train`` or ``Model.fit``, from `CheckpointCallback.resume` to its end.

Guarantees: those of `ckptkit.mindspore.callback.callback`, which owns a session and passes the hooks on. Main thread
only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
from mindspore.train import (
    Callback,
    History,
    LossMonitor,
    Model,
    ModelCheckpoint,
    RunContext,
    TimeMonitor,
)

from ckptkit.core.progress import ResumePoint
from ckptkit.core.text import many
from ckptkit.errors import ResumeError
from ckptkit.manager.heartbeat import HEARTBEAT
from ckptkit.manager.manager import CheckpointManager
from ckptkit.mindspore.callback.parameter_writers import acting_among, may_write_in_window
from ckptkit.mindspore.data.pipeline_nodes import source_names
from ckptkit.mindspore.data.pipeline_position import DatasetPosition
from ckptkit.mindspore.data.replay import unequal_epochs
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks
from ckptkit.mindspore.train.cell import AccumulationTrainCell

_log = logging.getLogger("ckptkit")

_NEVER_STOP = (LossMonitor, TimeMonitor, ModelCheckpoint, History)


class TrainingSession:
    def __init__(
        self,
        manager: CheckpointManager,
        state: StateManager,
        other_callbacks: OtherCallbacks,
        *,
        dataset: ds.Dataset,
        epochs: int,
        point: ResumePoint,
        read_only: Sequence[Callback | type[Callback]] = (),
        metrics: Sequence[object] = (),
    ) -> None:
        assert isinstance(state.position, DatasetPosition)  # noqa: S101 - CheckpointCallback always gives a dataset
        self.manager = manager
        self._state = state
        self._other_callbacks = other_callbacks
        self._dataset = dataset
        self._epochs = epochs
        self.point = point
        self._position = state.position
        self._size = state.position.size
        self._read_only = read_only
        self._evaluated_by = metrics
        self._begun = False
        self._may_stop = True
        self._wants_stop = False
        self._metrics: tuple[int, dict[str, float]] = (-1, {})
        self._params: Any = None  # what `Model` tells the callbacks, in one object for the whole training

    def begin(self, params: Any, me: Callback) -> None:
        self._params = params
        self.manager.watch_preemption()
        self._refuse_other_training(params)
        callbacks = [other for other in params.list_callback if isinstance(other, Callback) and other is not me]
        if any(isinstance(callback, type(me)) for callback in callbacks):
            raise ResumeError(
                "this training has two CheckpointCallbacks, and each would position the data at its own checkpoint. "
                "Keep one of them; mirror= also stores its checkpoints at a second root"
            )
        if params.list_callback[-1] is not me:  # `resume` has not seen the call of ``Model``
            raise ResumeError(
                "what a callback after CheckpointCallback changes at the end of a step would be missing in the "
                "checkpoint of that step: put CheckpointCallback last, callbacks=[..., ckpt]"
            )
        # Ranks may have different callbacks, such as a log in rank 0 only. If none in any rank can stop, later steps
        # need no agreement.
        self._may_stop = self.manager.agree(any(map(may_stop, callbacks)))
        self._other_callbacks.bind(callbacks)
        self._state.examination.judge_callbacks(callbacks, self._evaluated_by, acting_among(callbacks))
        if params.optimizer is None:
            # Model(cell) leaves it empty, which makes MindSpore's learning-rate callbacks fail.
            params.optimizer = getattr(self._state.cell, "optimizer", None)
        writers = may_write_in_window(callbacks, self._read_only)
        if writers:
            self._give_up_window(writers)
        params.cur_step_num = self.point.batches_delivered
        params.epoch_num = self._epochs  # as in a run without interruption; `Model` gives those that are left
        self._state.count_delivered(self.point.batches_delivered)
        HEARTBEAT.reads(source_names(self._dataset), self._size)
        self._position.iterator_made()
        # This callback is the last one: this undoes what the others' on_train_begin changed or drew.
        self._state.start.undo_changes()
        # Before the others' on_train_epoch_begin, which runs again if an epoch is resumed at its start.
        self._state.mark_again()
        if not self.point.batch:
            self._state.examination.begin()

    def begin_epoch(self) -> None:
        if self._begun:
            return
        begins = self._params.cur_epoch_num - 1
        if begins != self.point.epoch:
            raise ResumeError(_wrong_epoch(self.point.epoch, begins))
        self._other_callbacks.restore()
        if self.point.batch:
            # The others' on_train_epoch_begin ran a second time in this epoch: this undoes what it did.
            self._state.start.undo_changes()
            self._state.examination.begin()
        self._state.start.trained()
        self._begun = True

    def end_step(self, run_context: Any) -> None:
        params = self._params  # as a dict, which it is: an attribute of it takes a call of Python
        delivered, last_of_epoch = params["cur_step_num"], params["cur_epoch_num"] * self._size
        self._state.count_delivered(delivered)
        self._state.last_batch, self._state.last_outputs = params["train_dataset_element"], params["net_outputs"]
        if delivered > last_of_epoch:
            raise unequal_epochs(self._size, params["cur_epoch_num"] - 1)
        if delivered == last_of_epoch:
            HEARTBEAT.step(delivered)  # the manager, which shows the others, comes after the evaluation
            self._state.end_epoch()  # before the evaluation, which uses the epoch's last weights
        run = self.manager.live()
        # After end_epoch(), which may call the optimizer.
        run.recorder.seen = loss_of(params["net_outputs"]), norm_of(self._state.cell)
        if delivered == last_of_epoch:
            self.manager.fence()  # before the evaluation and before every callback's on_train_epoch_end
            self.manager.pause()
            return
        stops = run_context.get_stop_requested() if run.rank_sync.is_alone else self._stops_here(run_context)
        if stops:
            # Save now: on_train_epoch_end follows, where other callbacks treat this partial epoch as a whole one.
            self.manager.save_final(self._state)
        else:
            run.step(self._state, None)
        if run.is_over:  # all ranks know it by now
            run_context.request_stop()

    def end_epoch(self, run_context: Any, *, save_evaluated: bool) -> None:
        params = self._params
        stopping = run_context.get_stop_requested()
        if params.cur_step_num != params.cur_epoch_num * self._size:
            # request_stop ends an epoch early and still calls this; the last step has saved that partial epoch.
            if not stopping:
                raise unequal_epochs(self._size, params["cur_epoch_num"] - 1)
            return
        stopping = self._agreed_stop(run_context)
        metrics = _numbers(params.get("eval_results") or {})
        self._metrics = (params.cur_step_num, metrics)
        self._state.end(self._other_callbacks.early_stop())
        is_last = stopping or params.cur_epoch_num == self._epochs
        if is_last:
            # A complete run is never trained again, so its last checkpoint must include the others' on_train_end.
            self.manager.live().is_held = True
        if metrics and save_evaluated and not is_last:
            self.manager.save(self._state, metrics)
            self.manager.live().end_if_asked(self._state, metrics, self._state.progress())
        else:
            self.manager.step(self._state, metrics)
        if self.manager.preempted:  # all ranks know it by now
            run_context.request_stop()
        if is_last:
            self.manager.fence()  # the others' on_train_end, such as EarlyStopping's, run before this callback's

    def _stops_here(self, run_context: Any) -> bool:
        """Return whether training of many ranks stops after this micro-step, in all of them or in none.

        They stop only at boundaries. Until then a request to stop is held back, since `Model` would follow it at
        once, in this rank alone.
        """
        if not self._may_stop:
            return bool(run_context.get_stop_requested())
        if self._state.progress().at_boundary:
            return self._agreed_stop(run_context)
        self._wants_stop = hold_back(run_context) or self._wants_stop  # a second request is held back as well
        return False

    def _agreed_stop(self, run_context: Any) -> bool:
        if self.manager.ranks == 1 or not self._may_stop:
            return bool(run_context.get_stop_requested())
        wish = self._wants_stop or bool(run_context.get_stop_requested())
        if not self.manager.agree(wish):
            return False
        self._wants_stop = False
        run_context.request_stop()
        return True

    def end(self) -> None:
        if self.manager.preempted:
            return  # the final save was decided when training stopped, and the grace period may be over
        at, metrics = self._metrics
        delivered = self._state.progress().batches_delivered
        name = self.manager.save_final(self._state, metrics if at == delivered else {})
        skipped = self.manager.skipped_saves
        _log.info(
            "training ended after %s; %s is committed; %s%s",
            *(many(delivered, "batch", "batches"), name),
            f"during {many(skipped, 'write')} another save was due; " if skipped else "",
            self.manager.totals,
        )

    def leave(self, error: BaseException | None) -> None:
        """Release the run; an exception in flight is never hidden."""
        self._position.leave()
        self.manager.__exit__(None if error is None else type(error), error, None)

    def _give_up_window(self, writers: Sequence[str]) -> None:
        self.manager.live().give_up_window()
        _log.warning(
            "%s may change parameters within an epoch, so every save copies the whole state before training "
            "continues. If it does not, declare it: CheckpointCallback(..., training=ckptkit.Training(read_only=[%s]))",
            *(", ".join(writers), ", ".join(writers)),
        )

    def _refuse_other_training(self, params: Any) -> None:
        if params.train_network is not self._state.cell or params.train_dataset is not self._dataset:
            raise ResumeError("resume() was called with another model or dataset than Model.train got")
        if params.dataset_sink_mode:
            raise ResumeError(
                "with a sinking dataset, steps are counted by sink and mid-epoch positions are lost; "
                "pass dataset_sink_mode=False"
            )
        begins = self._epochs - params.epoch_num
        if begins != self.point.epoch:
            raise ResumeError(_wrong_epoch(self.point.epoch, begins))


def _wrong_epoch(wanted: int, actual: int) -> str:
    return (
        f"training would begin at epoch {actual}, but the run continues in epoch {wanted}: pass "
        f"initial_epoch={wanted} (point.epoch), and to resume() the same number of epochs as to Model.train"
    )


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are single numbers; others, such as a confusion matrix, cannot rank checkpoints."""
    numbers = {}
    for name, value in metrics.items():
        if isinstance(value, str | bytes) or getattr(value, "size", 1) != 1:
            continue
        try:
            numbers[name] = float(value.item() if hasattr(value, "item") else value)
        except (TypeError, ValueError):
            _log.info("the metric %s is not a number (%s) and is not stored", name, type(value).__name__)
    return numbers


def loss_of(outputs: Any) -> dict[str, ms.Tensor]:
    """Return the loss among a train cell's outputs, the first one, for ``ckptkit report``.

    One of another size is not recorded. It is a reference, whose value is not read, so nothing waits for the device.
    """
    first = outputs[0] if isinstance(outputs, tuple | list) and outputs else outputs
    return {"loss": first} if isinstance(first, ms.Tensor) else {}


def norm_of(cell: Any) -> dict[str, ms.Tensor]:
    """Return the norm of the gradients, if the last micro-step called the optimizer of an `AccumulationTrainCell`."""
    if not isinstance(cell, AccumulationTrainCell) or not cell.updated or cell.gradient_norm is None:
        return {}
    return {"gradient_norm": cell.gradient_norm}


def metrics_of(model: Model) -> list[object]:
    """Return the metrics with which a model evaluates.

    ``Model`` keeps them in a private attribute; `test_metrics_of_a_model_are_found` fails if it moves.
    """
    return [*(getattr(model, "_metric_fns", None) or {}).values()]


def may_stop(callback: Callback) -> bool:
    """Return whether ``callback`` may request a stop, as far as its type tells; a subclass may do anything."""
    return type(callback) not in _NEVER_STOP


def hold_back(run_context: RunContext) -> bool:
    """Withdraw a request to stop, which `Model` then does not see, and return whether there was one."""
    if not run_context.get_stop_requested():
        return False
    # Private attribute: RunContext has no public way to withdraw a request. If it moves, get_stop_requested() below
    # and tests/unit/mindspore/callback/test_session.py notice it.
    run_context._stop_requested = False
    if run_context.get_stop_requested():
        raise AttributeError(
            "this version of MindSpore keeps the stop request of RunContext elsewhere, so it cannot be delayed"
        )
    return True
