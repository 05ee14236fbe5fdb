"""CheckpointCallback under Model.fit: evaluations are neither counted, nor skipped, nor repeated."""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import pytest
from mindspore import nn
from mindspore.train import MSE, Callback, EarlyStopping, Model, ReduceLROnPlateau
from support.training import (
    SIZE,
    CrashError,
    Interrupt,
    Job,
    Stop,
    Trace,
    begin_process,
    checkpoints,
    disturb,
    pipeline,
)

import ckptkit as ck
from ckptkit.manager.manager import CheckpointManager
from ckptkit.mindspore.callback.session import _numbers


def names(root):
    return [info.name for info in CheckpointManager(root).checkpoints()]


def metrics_of(root):
    return {info.name: dict(info.metrics) for info in CheckpointManager(root).checkpoints()}


def fitted(ckpt, epochs, *callbacks, mode="pynative", disturbed=False, **options):
    job = Job(fit=True, mode=mode)
    if disturbed:
        disturb()
    try:
        ckpt.fit(job.model, epochs, job.data, job.valid, callbacks=[job.trace, *callbacks], **options)
    except CrashError:
        job.interrupted = True
    return job


@functools.cache
def whole(mode="pynative"):
    job = Job(fit=True, mode=mode)
    job.model.fit(3, job.data, job.valid, callbacks=[job.trace])
    return job.trace


@pytest.mark.parametrize(("mode", "at"), [("pynative", SIZE), ("graph", SIZE + 1)])
def test_resumed_fit_has_every_bit_and_every_evaluation(root, mode, at):
    expected = whole(mode)
    first = fitted(checkpoints(root, at - 1), 3, Interrupt(at), mode=mode)
    assert first.interrupted
    second = fitted(checkpoints(root), 3, mode=mode, disturbed=True)
    assert second.trace.steps == {step: expected.steps[step] for step in range(at, 3 * SIZE + 1)}
    epoch = (at - 1) // SIZE + 1
    assert first.trace.evaluated == {number: expected.evaluated[number] for number in range(1, epoch)}
    assert second.trace.evaluated == {number: expected.evaluated[number] for number in range(epoch, 4)}


class Plain:
    """What ``Model`` makes of a network, a loss and an optimizer: its evaluation shares only the network."""

    def __init__(self, mode):
        begin_process(mode=mode)
        network = nn.SequentialCell(nn.Dense(6, 8), nn.BatchNorm1d(8), nn.Dense(8, 3))
        optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
        self.model = Model(network, nn.MSELoss(), optimizer, metrics={"mse": MSE()})
        self.data, self.valid, self.trace = pipeline(), pipeline(12, 4, shuffle=False), Trace()

    def fit(self, ckpt, *callbacks):
        with contextlib.suppress(CrashError):
            start = self.model.fit if ckpt is None else functools.partial(ckpt.fit, self.model)
            start(2, self.data, self.valid, callbacks=[self.trace, *callbacks])
        return self.trace


@pytest.mark.parametrize(("mode", "at"), [("pynative", SIZE + 1), ("graph", SIZE - 1)])
def test_plain_model_resumes_around_the_end_of_an_epoch(root, mode, at):
    """The first micro-step after the restore may be the last one before an evaluation."""
    expected = Plain(mode).fit(None)
    Plain(mode).fit(checkpoints(root, at), Interrupt(at + 1))
    disturb()
    resumed = Plain(mode).fit(checkpoints(root))
    assert resumed.steps == {step: expected.steps[step] for step in range(at + 1, 2 * SIZE + 1)}
    assert resumed.evaluated == {epoch: expected.evaluated[epoch] for epoch in resumed.evaluated}


def test_evaluation_is_neither_skipped_nor_saved_before(root):
    events = []

    class Order(Callback):
        def on_train_step_end(self, run_context):
            events.append(run_context.original_args().cur_step_num)

        def on_eval_begin(self, run_context):
            events.append(f"evaluation of {run_context.original_args().cur_epoch_num}")
            if len(events) == SIZE + 1:
                assert names(root) == []

        def on_train_epoch_end(self, run_context):
            events.append("end of epoch")

    class Nested(ck.CheckpointCallback):
        def __exit__(self, *error):
            super().__exit__(*error)
            events.append(self._session is not None)

    ckpt = Nested(root, save=ck.SaveEvery(micro_steps=SIZE), saving=ck.Saving(when_busy="wait"))
    job = Job(fit=True)
    ckpt.fit(job.model, 2, job.data, job.valid, callbacks=[Order()])
    steps = range(1, 2 * SIZE + 1)
    first = [*steps[:SIZE], "evaluation of 1", True, "end of epoch"]
    # The evaluations leave the callback open; the end of training closes it.
    assert events == [*first, *steps[SIZE:], "evaluation of 2", True, "end of epoch", False]
    assert len(names(root)) == 2


def test_fit_goes_back_where_it_is_told(root):
    fitted(checkpoints(root, 5), 1)
    first = names(root)[0]
    restarted = fitted(checkpoints(root), 1, checkpoint=first, rewind=True)
    assert set(restarted.trace.steps) == set(range(6, SIZE + 1))


def test_crash_in_the_evaluation_repeats_it(root):
    class Crash(Callback):
        def on_eval_step_end(self, run_context):
            if run_context.original_args().cur_epoch_num == 2:
                raise CrashError

    first = fitted(checkpoints(root, SIZE), 2, Crash())
    assert first.interrupted
    assert names(root) == ["a000001-c0000000002-m0003"]
    second = fitted(checkpoints(root), 2, disturbed=True)
    assert second.trace.steps == {step: whole().steps[step] for step in range(SIZE + 1, 2 * SIZE + 1)}
    assert second.trace.evaluated == {2: whole().evaluated[2]}


def test_mid_epoch_stop_is_no_epoch_end(root):
    ckpt = checkpoints(root, SIZE, keep=ck.KeepBest(2, "mae", "min") | ck.KeepLatest(9))
    stopped = fitted(ckpt, 2, Stop(SIZE + 4))
    assert 2 in stopped.trace.evaluated  # MindSpore evaluates the half epoch
    assert {name: bool(metrics) for name, metrics in metrics_of(root).items()} == {
        "a000001-c0000000002-m0003": True,
        "a000001-c0000000003-m0003": False,
    }
    second = fitted(checkpoints(root), 2, disturbed=True)
    assert second.trace.steps == {step: whole().steps[step] for step in range(SIZE + 5, 2 * SIZE + 1)}
    assert second.trace.evaluated == {2: whole().evaluated[2]}


def test_metrics_are_of_the_epoch_that_was_evaluated(root):
    fitted(checkpoints(root, SIZE, keep=ck.KeepLatest(9)), 3, valid_frequency=2)
    evaluated = whole().evaluated[2]
    assert set(evaluated) == {"mae", "eval_loss"}
    assert list(metrics_of(root).values()) == [{}, evaluated, {}]
    other = root.with_name("other")
    fitted(checkpoints(other, keep=ck.KeepBest(2, "mae", "min")), 2, valid_frequency=2)
    assert names(other) == ["a000001-c0000000005-m0002"]  # none of the epoch that was not


def test_stop_from_behind_leaves_metrics_to_their_epoch(root):
    job, ckpt = Job(fit=True), checkpoints(root, SIZE, keep=ck.KeepLatest(9))
    ckpt.resume(job.model, job.data, 3)
    job.model.fit(3, job.data, job.valid, callbacks=[ckpt, Stop(SIZE + 4)])
    assert [bool(metrics) for metrics in metrics_of(root).values()] == [True, False]


def test_keep_best_saves_evaluated_epochs_and_keeps_best(root):
    ckpt = checkpoints(root, 1000, keep=ck.KeepBest(1, "mae", "max"))
    fitted(ckpt, 4)
    gathered = metrics_of(root)
    assert all("mae" in metrics for metrics in gathered.values())
    # The two newest stay whatever they are, and so does the best, which is the first: the error falls.
    errors = [whole().evaluated[epoch]["mae"] for epoch in (1, 2, 3)]
    assert max(errors) == errors[0]
    assert list(gathered) == ["a000001-c0000000002-m0003", "a000001-c0000000008-m0001", "a000001-c0000000011-m0000"]
    assert next(iter(gathered.values()))["mae"] == errors[0]


def test_early_stopping_by_the_evaluation_resumes(root):
    def life(where, crash_at=None):
        stop = EarlyStopping(monitor="eval_loss", patience=1, min_delta=0.2)
        reduce = ReduceLROnPlateau(monitor="eval_loss", patience=1, factor=0.5, min_delta=0.01)
        extra = [Interrupt(crash_at)] if crash_at else []
        every = crash_at - 1 if crash_at else 1000
        job = fitted(checkpoints(where, every), 9, stop, reduce, *extra, disturbed=not crash_at)
        return job.trace, stop

    expected, stopped = life(root.with_name("whole"), crash_at=9 * SIZE + 99)
    assert 1 < stopped.stopped_epoch < 9
    at = (stopped.stopped_epoch - 1) * SIZE + 4
    life(root, crash_at=at)
    gathered, stopped_again = life(root)
    assert stopped_again.stopped_epoch == stopped.stopped_epoch
    assert gathered.steps == {step: bits for step, bits in expected.steps.items() if step >= at}


def test_metrics_without_single_number_are_omitted(shown):
    given = {
        "number": 0.5,
        "shape": np.ones((2, 3)),
        "scalar": np.float32(0.25),
        "array of one": np.array([3.0]),
        "confusion": np.eye(2),
        "by class": [1, 2],
        "text": "good",
        "digits": "0.5",
        "bytes": b"1",
        "none": None,
        "nested": {"a": 1},
    }
    assert _numbers(given) == {"number": 0.5, "scalar": 0.25, "array of one": 3.0}
    assert "the metric none is not a number" in shown()
