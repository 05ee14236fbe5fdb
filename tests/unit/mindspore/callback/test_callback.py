"""CheckpointCallback under Model.train: exact resume, or a refusal before the first batch that says what to do."""

import contextlib
import functools

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.train import Callback, EarlyStopping, Model, ReduceLROnPlateau, RunContext
from support.training import (
    SIZE,
    CrashError,
    Interrupt,
    Job,
    Steps,
    Stop,
    adam,
    checkpoints,
    crashed,
    digest,
    disturb,
    later,
    names,
    pipeline,
    reference,
    rng_digest,
    tensors,
)

import ckptkit as ck
from ckptkit.mindspore.callback.session import _numbers
from ckptkit.storage import open_storage
from ckptkit.testing.faults import Fault, FaultyStorage


def part(steps, first, last):
    return {step: steps[step] for step in range(first, last + 1)}


@pytest.mark.parametrize(("mode", "kills"), [("pynative", (3, 4, 12, 13, 33)), ("graph", (7,))])
def test_repeatedly_interrupted_run_has_every_bit(root, mode, kills):
    """In mid-cycle, at a boundary, at the end of an epoch, and at the last batch."""
    expected = reference(mode)
    gathered = {}
    for at in kills:
        gathered |= crashed(root, at, mode=mode).trace.steps
    last = Job(mode=mode)
    last.resumed(checkpoints(root), 3)
    assert gathered | last.trace.steps == expected
    assert last.trace.epochs[kills[-1]] == (kills[-1] - 1) // SIZE + 1


def test_the_same_callback_serves_a_second_training(root):
    """A callback that is named in the list too is used once, and last; the list may be one object."""
    expected = reference()
    job, ckpt, ends = Job(), checkpoints(root), []
    ckpt.train(job.model, 1, job.data, callbacks=job.trace)
    disturb()
    end = ckpt.on_train_step_end
    ckpt.on_train_step_end = lambda run_context: ends.append(run_context) or end(run_context)
    ckpt.train(job.model, 3, job.data, callbacks=[ckpt, job.trace])
    assert job.trace.steps == expected
    assert len(ends) == 2 * SIZE
    with pytest.raises(ck.ResumeError, match=r"ckpt\.resume"):
        job.model.train(3, job.data, callbacks=ckpt)


def test_finished_run_trains_nothing_and_says_so(root, shown):
    first = Job()
    first.started(checkpoints(root, save=ck.SaveEvery(optimizer_steps=1000)), 2)  # whose end is saved all the same
    for epochs in (2, 1):  # fewer than were trained are complete, too
        restarted, steps = Job(), Steps()
        disturb()
        point = checkpoints(root).train(restarted.model, epochs, restarted.data, callbacks=[steps, restarted.trace])
        assert (point.complete, point.checkpoint) == (True, names(root)[-1]), epochs
        assert steps.begun == 0
        assert tensors(restarted.cell) == tensors(first.cell)
        assert restarted.cell.counters == first.cell.counters
    assert "training is complete (22 batches are 2 epochs); nothing to do" in shown()
    assert (shown().count("starting afresh at"), shown().count("resuming from a000001-")) == (1, 2)
    assert Job().resumed(checkpoints(root), 3).steps == part(reference(), 23, 33)


class Losses(Callback):
    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_step_end(self, run_context):
        self.values.append(float(run_context.original_args().net_outputs.asnumpy()))


def test_callbacks_of_a_complete_training_are_as_it_left_them(root, shown):
    """What follows the training in the script reads them, also after a kill behind the last save."""
    histories, job = [Losses() for _ in range(4)], Job()
    for history in histories[:2]:
        checkpoints(root).train(job.model, 1, job.data, callbacks=[history])
        job = Job()
    with checkpoints(root).attach():
        job.model.train(1, job.data, callbacks=[histories[2]])
    assert [history.values for history in histories[1:3]] == [histories[0].values] * 2
    assert len(histories[0].values) == SIZE
    assert "could not be put back" not in shown()
    assert checkpoints(root).resume(Job().model, pipeline(), 1).complete  # knows no callbacks, and says so
    assert "could not be put back: Losses().values" in shown()


def test_stop_in_mid_epoch_does_not_end_it(root, shown):
    first = Job()
    first.started(checkpoints(root), 2, Stop(15))
    assert names(root) == ["a000001-c0000000003-m0003"]
    restarted = Job()
    assert checkpoints(root).train(restarted.model, 1, restarted.data, callbacks=[restarted.trace]).complete
    assert "(15 batches are 1 epoch and 4 batches of the next)" in shown()
    assert "To train on, give more than 1 epoch; you gave 1." in shown()
    assert restarted.data.get_init_step() == 0
    assert ds.config.get_fast_recovery()
    assert Job().resumed(checkpoints(root), 2).steps == part(reference(), 16, 22)


def test_failed_save_does_not_hide_training_error(root, shown):
    storage = FaultyStorage(open_storage(root), [Fault("error", operations={"write"}, times=None)])
    with pytest.raises(CrashError):
        Job().started(checkpoints(storage, 5, on_save_error="raise"), 2, Interrupt(6))
    assert "while another error was being raised: a background save failed" in shown()


@pytest.fixture
def stored(root):
    crashed(root, 15, 2)
    return root


def test_what_differs_is_refused_before_anything_changes(stored):
    job, steps = Job(seed=6), Steps()
    disturb()

    def now():  # a start that is refused takes nothing over from a job that runs
        return digest(job.cell), rng_digest(), ds.config.get_seed(), sorted(stored.glob("attempts/*"))

    before = now()
    with pytest.raises(ck.ResumeError, match=r"the dataset seed: the checkpoint has 5, this process set 6"):
        checkpoints(stored).train(job.model, 2, job.data, callbacks=[steps])
    assert (steps.begun, now()) == (0, before)


def test_forgotten_initial_epoch_is_refused(stored):
    """Other epochs than resume() got as well; and the training can start in the same process."""
    job, ckpt, steps = Job(), checkpoints(stored), Steps()
    for epochs, begins in ((2, {}), (3, {"initial_epoch": 1}), (3, {"initial_epoch": 2}), (2, {"initial_epoch": 0})):
        point = ckpt.resume(job.model, job.data, epochs=2)
        assert point.epoch == 1
        before = digest(job.cell)
        with pytest.raises(ck.ResumeError, match=r"begin at epoch [012], but .* epoch 1: pass initial_epoch=1"):
            job.model.train(epochs, job.data, callbacks=[steps, ckpt], **begins)
        assert steps.begun == 0, (epochs, begins)
        assert digest(job.cell) == before
        assert ds.config.get_fast_recovery()
        assert job.data.get_init_step() == 0
    assert job.started(ckpt, 2).steps == part(reference(), 15, 22)


def test_training_without_the_callback_that_resumed_it_is_refused(root):
    """It would train to its end, and nothing would be saved; so would another model, or on other data."""
    job, other, ckpt, steps = Job(), Job(), checkpoints(root), Steps()
    for model, dataset in ((other.model, job.data), (job.model, other.data)):
        assert ckpt.resume(job.model, job.data, epochs=2) == ck.ResumePoint()
        with pytest.raises(ck.ResumeError, match=r"another model or dataset"):
            model.train(2, dataset, callbacks=[steps, ckpt])
    job = Job()
    for callbacks in ({}, {"callbacks": steps}, {"callbacks": [steps]}):
        ckpt.resume(job.model, job.data, epochs=2)
        with pytest.raises(ck.ResumeError, match=r"without the CheckpointCallback .*: pass callbacks=\[ckpt\]"):
            job.model.train(2, job.data, **callbacks)
    assert steps.begun == 0
    checkpoints(root).train(job.model, 2, job.data, callbacks=[steps])  # a notebook's cell that makes another callback
    assert steps.begun > 0


def test_sinking_dataset_is_refused(root):
    # CPU never sinks, so that what Model hands to callbacks on a sinking device is imitated.
    class Params(dict):
        __getattr__ = dict.__getitem__
        __setattr__ = dict.__setitem__

    job, ckpt = Job(), checkpoints(root)
    ckpt.resume(job.model, job.data, epochs=2)
    params = Params(train_network=job.cell, train_dataset=job.data, epoch_num=2, list_callback=[ckpt])
    with pytest.raises(ck.ResumeError, match=r"pass dataset_sink_mode=False"):
        ckpt.on_train_begin(RunContext(Params(params, dataset_sink_mode=True)))


def test_initial_epoch_is_not_for_the_caller(root):
    job, ckpt = Job(fit=True), checkpoints(root)
    for start in (ckpt.train, functools.partial(ckpt.fit, valid_dataset=job.valid)):
        with pytest.raises(ValueError, match=r"initial_epoch is decided by the checkpoint"):
            start(job.model, 2, job.data, initial_epoch=1)
    assert not root.exists()


class Late(Callback):
    """Sets the learning rate at the end of each step, from a count that no ``state_dict()`` gives."""

    def __init__(self):
        self.count = 0

    def on_train_step_end(self, run_context):
        self.count += 1
        rate = run_context.original_args().train_network.optimizer.learning_rate
        ops.assign(rate, ms.Tensor(0.01 / (1 + self.count % 5), ms.float32))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_place_in_the_list_changes_no_bit(root, place):
    """What callbacks do after it at the end of a step is in the checkpoint of that step."""
    expected = Job().uninterrupted(2, Late()).steps

    def life(ckpt, *others):
        job = Job()
        if not others:
            disturb()
        point = ckpt.resume(job.model, job.data, epochs=2)
        callbacks = [job.trace, Late(), *others]
        callbacks.insert(place, ckpt)
        with contextlib.suppress(CrashError):
            job.model.train(2, job.data, callbacks=callbacks, initial_epoch=point.epoch)
        assert "train" not in vars(job.model)
        return point, job.trace.steps

    point, steps = life(checkpoints(root, 14), Interrupt(15))
    assert (point, steps) == (ck.ResumePoint(), part(expected, 1, 15))
    point, steps = life(checkpoints(root))
    assert (point.epoch, point.batch, point.batches_delivered) == (1, 3, 14)
    assert (point.optimizer_step, point.micro_step, point.complete) == (3, 2, False)
    assert steps == part(expected, 15, 2 * SIZE)


def test_list_that_nobody_can_order_is_refused(root):
    job, steps, ckpt = Job(), Steps(), checkpoints(root)
    ckpt.resume(job.model, job.data, epochs=1)
    with pytest.raises(ck.ResumeError, match=r"put CheckpointCallback last, callbacks=\[\.\.\., ckpt\]"):
        Model.train(job.model, 1, job.data, callbacks=[ckpt, steps])
    assert steps.begun == 0


# Under Model.fit: evaluations are neither counted, nor skipped, nor repeated


def metrics_of(root):
    return {info.name: dict(info.metrics) for info in ck.CheckpointManager(root).checkpoints()}


def fit_job(mode, stock):
    """With a stock model, evaluations switch the network, and not the cells around it."""
    job = Job(fit=True, mode=mode)
    if stock:
        network = nn.SequentialCell(nn.Dense(6, 8), nn.BatchNorm1d(8), nn.Dense(8, 3))
        job.model = Model(network, nn.MSELoss(), adam(network.trainable_params()), metrics={"mae"})
    return job


def fitted(ckpt, epochs, *callbacks, mode="pynative", stock=False, disturbed=False, **options):
    job = fit_job(mode, stock)
    if disturbed:
        disturb()
    try:
        ckpt.fit(job.model, epochs, job.data, job.valid, callbacks=[job.trace, *callbacks], **options)
    except CrashError:
        job.interrupted = True
    return job


@functools.cache
def whole(mode="pynative", stock=False):
    job = fit_job(mode, stock)
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


def test_evaluation_is_neither_skipped_nor_saved_before(root):
    events = []

    class Order(Callback):
        def on_eval_begin(self, run_context):
            done, epoch = job.cell.counters.micro_steps, run_context.original_args().cur_epoch_num
            events.append((done, epoch, names(root), ckpt._session is not None))

        def on_train_epoch_end(self, run_context):
            events.append("end of epoch")

    ckpt, job = checkpoints(root, SIZE), Job(fit=True)
    ckpt.fit(job.model, 2, job.data, job.valid, callbacks=[Order()])
    # The evaluations leave the callback open; the end of training closes it.
    first, second = "a000001-c0000000002-m0003", "a000001-c0000000005-m0002"
    assert events == [(SIZE, 1, [], True), "end of epoch", (2 * SIZE, 2, [first], True), "end of epoch"]
    assert (names(root), ckpt._session) == ([first, second], None)


@pytest.mark.parametrize("stock", [False, True])
def test_crash_in_the_evaluation_repeats_it(root, stock):
    class Crash(Callback):
        def on_eval_step_end(self, run_context):
            if run_context.original_args().cur_epoch_num == 2:
                raise CrashError

    assert fitted(checkpoints(root, SIZE), 2, Crash(), stock=stock).interrupted
    (info,) = ck.CheckpointManager(root).checkpoints()
    assert info.progress.batches_delivered == SIZE
    second, expected = fitted(checkpoints(root), 2, stock=stock, disturbed=True).trace, whole(stock=stock)
    assert second.steps == part(expected.steps, SIZE + 1, 2 * SIZE)
    assert second.evaluated == {2: expected.evaluated[2]}


def test_mid_epoch_stop_is_no_epoch_end(root):
    """Wherever in the list the callback is that asks for it."""
    options = {"keep": ck.KeepBest(2, "mae", "min") | ck.KeepLatest(9)}
    stopped = fitted(checkpoints(root, SIZE, **options), 2, Stop(SIZE + 4))
    assert 2 in stopped.trace.evaluated  # MindSpore evaluates the half epoch
    behind, job, ckpt = root.with_name("behind"), Job(fit=True), checkpoints(root.with_name("behind"), SIZE, **options)
    ckpt.resume(job.model, job.data, 2)
    job.model.fit(2, job.data, job.valid, callbacks=[ckpt, Stop(SIZE + 4)])
    for run in (root, behind):
        assert {name: bool(metrics) for name, metrics in metrics_of(run).items()} == {
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
    assert gathered.steps == later(expected.steps, at - 1)


def test_metrics_without_single_number_are_omitted(shown):
    numbers = {"number": 0.5, "scalar": np.float32(0.25), "array of one": np.array([3.0])}
    others = {"shape": np.ones((2, 3)), "by class": [1, 2], "digits": "0.5", "bytes": b"1", "none": None, "a": {"b": 1}}
    assert _numbers({**numbers, **others}) == {"number": 0.5, "scalar": 0.25, "array of one": 3.0}
    assert "the metric none is not a number" in shown()
