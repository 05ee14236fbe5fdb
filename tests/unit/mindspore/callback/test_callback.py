"""CheckpointCallback under Model.train: exact resume, or a refusal before the first batch that says what to do."""

from __future__ import annotations

import contextlib
import functools
import shutil

import mindspore as ms
import mindspore.dataset as ds
import pytest
from mindspore import nn, ops
from mindspore.train import Callback, LearningRateScheduler, Model, RunContext
from support.training import (
    SIZE,
    UNSET_SEED,
    CrashError,
    Interrupt,
    Job,
    Mlp,
    Steps,
    Stop,
    accumulation_cell,
    checkpoints,
    crashed,
    digest,
    disturb,
    pipeline,
    reference,
    rng_digest,
    tensors,
)

import ckptkit as ck
from ckptkit.storage import open_storage
from ckptkit.testing.faults import Fault, FaultyStorage


def names(root):
    return [info.name for info in ck.CheckpointManager(root).checkpoints()]


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


def test_run_with_lost_root_resumes_from_mirror(root, tmp_path):
    mirror = tmp_path / "mirror"
    with contextlib.suppress(CrashError):
        Job().started(checkpoints(root, 6, mirror=mirror), 3, Interrupt(7))
    shutil.rmtree(root)
    resumed = Job().resumed(checkpoints(root, mirror=mirror), 3)
    assert resumed.steps == part(reference(), 7, 3 * SIZE)
    shutil.rmtree(root)
    assert checkpoints(root, mirror=mirror).resume(Job().model, pipeline(), 3).complete


def test_checkpointing_does_not_change_training_bits(root):
    assert Job().started(checkpoints(root, 1), 1).steps == part(reference(), 1, SIZE)


def test_spelled_out_is_the_same_as_train(root):
    expected = reference()
    crashed(root, 15, 2)
    job, ckpt = Job(), checkpoints(root)
    disturb()
    point = ckpt.resume(job.model, job.data, epochs=2)
    assert (point.epoch, point.batch, point.batches_delivered) == (1, 3, 14)
    assert (point.optimizer_step, point.micro_step, point.complete) == (3, 2, False)
    assert point.checkpoint == "a000001-c0000000003-m0002"
    job.model.train(2, job.data, callbacks=[job.trace, ckpt], initial_epoch=point.epoch)
    assert job.trace.steps == part(expected, 15, 22)


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
    first.started(checkpoints(root), 2)
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
    def __init__(self) -> None:
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


def test_end_of_training_is_committed_whatever_the_schedule(root):
    Job().started(checkpoints(root, save=ck.SaveEvery(optimizer_steps=1000)), 1)
    assert names(root) == ["a000001-c0000000002-m0003"]


def storage_with(root, *faults):
    return FaultyStorage(open_storage(root), faults)


def test_three_consecutive_failed_saves_stop_training(root, shown):
    storage = storage_with(root, Fault("error", operations={"write"}, times=None))
    job = Job()
    with pytest.raises(ck.SaveFailedError, match=r"3 in a row") as raised:
        job.started(checkpoints(storage, 1), 2)
    assert isinstance(raised.value.__cause__, ck.StorageError)
    # A failure of the save after step n is known at step n+1 at the earliest, with when_busy="wait" for sure.
    assert max(job.trace.steps) == 4
    assert "2 in a row" in shown()
    assert names(root) == []


def test_failed_save_does_not_hide_training_error(root, shown):
    storage = storage_with(root, Fault("error", operations={"write"}, times=None))
    job = Job()
    ckpt = checkpoints(storage, 5, on_save_error="raise")

    class Crash(Interrupt):
        def on_train_step_begin(self, run_context):
            if run_context.original_args().cur_step_num == self.at:
                raise CrashError

    with pytest.raises(CrashError):
        job.started(ckpt, 2, Crash(6))
    assert "while another error was being raised: a background save failed" in shown()


class Witness:
    def __init__(self, job):
        self._job = job
        self.steps = Steps()
        self._before = self._now()

    def _now(self):
        return digest(self._job.cell), rng_digest(), ds.config.get_seed(), self._job.cell.counters

    def unchanged(self):
        return self.steps.begun == 0 and self._now() == self._before


@pytest.fixture
def stored(root):
    crashed(root, 15, 2)
    return root


class Wider(Mlp):
    def __init__(self):
        super().__init__()
        self.out = nn.Dense(8, 4)


def test_what_differs_is_refused_before_anything_changes(stored):
    for changed, message in (
        ({"data": functools.partial(pipeline, 40)}, r"batches per epoch.*checkpoint has 11, .* has 10"),
        (
            {"data": functools.partial(pipeline, 55, 5)},
            r"samples per batch: the checkpoint has 4, this dataset has 5",
        ),
        ({"seed": 6}, r"the dataset seed: the checkpoint has 5, this process set 6.*ms\.set_seed\(5\)"),
        (
            {"cell": functools.partial(accumulation_cell, 3)},
            r"accumulation_steps=4, this train cell has 3\. Build it with accumulation_steps=4",
        ),
        ({"data": lambda: pipeline().rename(["x", "y"], ["a", "b"])}, r"columns.*'x'.*'a'"),
        ({"cell": lambda: accumulation_cell(network=Wider)}, r"out\.weight: the checkpoint has F32 \[3, 8\], this"),
    ):
        job = Job(**changed)
        disturb()
        witness = Witness(job)
        attempts = sorted(stored.glob("attempts/*"))
        with pytest.raises((ck.ResumeError, ck.StateMismatchError), match=r"(?s)" + message):
            checkpoints(stored).train(job.model, 2, job.data, callbacks=[witness.steps])
        assert witness.unchanged(), message
        # A start that is refused takes nothing over from a job that runs.
        assert sorted(stored.glob("attempts/*")) == attempts, message


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
    """It would train to its end, and nothing would be saved."""
    job, ckpt, steps = Job(), checkpoints(root), Steps()
    ckpt.resume(job.model, job.data, epochs=2)
    for callbacks in ({}, {"callbacks": steps}, {"callbacks": [steps]}):
        with pytest.raises(ck.ResumeError, match=r"without the CheckpointCallback .*: pass callbacks=\[ckpt\]"):
            job.model.train(2, job.data, **callbacks)
    assert steps.begun == 0
    checkpoints(root).train(job.model, 2, job.data, callbacks=[steps])  # a notebook's cell that makes another callback
    assert steps.begun > 0


def test_another_model_or_dataset_than_resume_got_is_refused(root):
    job, other, ckpt, steps = Job(), Job(), checkpoints(root), Steps()
    for model, dataset in ((other.model, job.data), (job.model, other.data)):
        assert ckpt.resume(job.model, job.data, epochs=2) == ck.ResumePoint()
        with pytest.raises(ck.ResumeError, match=r"another model or dataset"):
            model.train(2, dataset, callbacks=[steps, ckpt])
    assert steps.begun == 0


def test_seed_changed_after_resume_is_refused(root):
    job, ckpt, steps = Job(), checkpoints(root), Steps()
    ckpt.resume(job.model, job.data, epochs=2)
    ms.set_seed(8)
    with pytest.raises(ck.ResumeError, match=r"was 5 when .* is 8 now; call ms\.set_seed before resume"):
        job.model.train(2, job.data, callbacks=[steps, ckpt])
    assert steps.begun == 0
    assert ds.config.get_fast_recovery()


def test_sinking_dataset_is_refused(root):
    # CPU never sinks, so that what Model hands to callbacks on a sinking device is imitated.
    class Params(dict):
        __getattr__ = dict.__getitem__
        __setattr__ = dict.__setitem__

    job, ckpt = Job(), checkpoints(root)
    ckpt.resume(job.model, job.data, epochs=2)
    params = Params(
        train_network=job.cell, train_dataset=job.data, dataset_sink_mode=True, epoch_num=2, list_callback=[ckpt]
    )
    with pytest.raises(ck.ResumeError, match=r"pass dataset_sink_mode=False"):
        ckpt.on_train_begin(RunContext(params))


def test_initial_epoch_is_not_for_the_caller(root):
    job = Job(fit=True)
    with pytest.raises(ValueError, match=r"initial_epoch is decided by the checkpoint"):
        checkpoints(root).train(job.model, 2, job.data, initial_epoch=1)
    with pytest.raises(ValueError, match=r"initial_epoch is decided by the checkpoint"):
        checkpoints(root).fit(job.model, 2, job.data, job.valid, initial_epoch=1)
    assert not root.exists()


def test_unset_seed_is_drawn_named_and_recorded(root, shown):
    whole = Job(seed=None)
    ckpt = checkpoints(root)
    ckpt.resume(whole.model, whole.data, epochs=1)
    drawn = ds.config.get_seed()
    assert drawn != UNSET_SEED
    assert f"drew {drawn} and recorded it" in shown()
    assert f"ms.set_seed({drawn})" in shown()
    whole.model.train(1, whole.data, callbacks=[ckpt])
    # Another run in this process must not take the seed for the user's.
    assert ds.config.get_seed() == UNSET_SEED
    job = Job(seed=None)
    assert checkpoints(root).resume(job.model, job.data, epochs=1).complete
    assert tensors(job.cell) == tensors(whole.cell)
    checkpoints(root).resume(job.model, job.data, epochs=2)
    assert ds.config.get_seed() == drawn


class Counter(Callback):
    """A callback of the user's own whose state matters; in the middle of an epoch, its hook comes a second time."""

    def __init__(self):
        self.seen, self.in_epoch, self.history = 0, 0, {}

    def on_train_epoch_begin(self, run_context):
        self.in_epoch = 0

    def on_train_step_end(self, run_context):
        self.seen += run_context.original_args().cur_step_num
        self.in_epoch += 1
        self.history[run_context.original_args().cur_step_num] = self.seen, self.in_epoch  # no state_dict() gives it

    def state_dict(self):
        return {"seen": self.seen, "in_epoch": self.in_epoch}

    def load_state_dict(self, state):
        self.seen, self.in_epoch = state["seen"], state["in_epoch"]


@pytest.mark.parametrize("is_given", [True, False])
def test_callback_with_a_state_resumes(root, shown, is_given):
    def given(counter):
        return {"counter": counter} if is_given else None

    expected, counter, restarted = Counter(), Counter(), Counter()
    Job().uninterrupted(2, expected)
    crashed(root, 15, 2, counter, stateful=given(counter))
    Job().resumed(checkpoints(root, stateful=given(restarted)), 2, restarted)
    assert restarted.history == expected.history
    assert "also stored, since training changes them: Counter().seen" in shown()


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
        return job.trace.steps

    assert life(checkpoints(root, 14), Interrupt(15)) == part(expected, 1, 15)
    assert life(checkpoints(root)) == part(expected, 15, 2 * SIZE)


def test_list_that_nobody_can_order_is_refused(root):
    job, steps, ckpt = Job(), Steps(), checkpoints(root)
    ckpt.resume(job.model, job.data, epochs=1)
    with pytest.raises(ck.ResumeError, match=r"put CheckpointCallback last, callbacks=\[\.\.\., ckpt\]"):
        Model.train(job.model, 1, job.data, callbacks=[ckpt, steps])
    assert steps.begun == 0


def test_learning_rate_scheduler_works_and_resumes(root):
    def halved(rate, step):
        return rate / 2 if step % 5 == 0 else rate

    expected = reference()
    with pytest.raises(AttributeError):  # MindSpore's own: cb_params.optimizer is None with Model(cell)
        Job().uninterrupted(1, LearningRateScheduler(halved))
    whole = Job().started(checkpoints(root.with_name("whole")), 2, LearningRateScheduler(halved)).steps
    assert whole[11] != expected[11]
    crashed(root, 16, 2, LearningRateScheduler(halved))
    assert Job().resumed(checkpoints(root), 2, LearningRateScheduler(halved)).steps == part(whole, 16, 22)
