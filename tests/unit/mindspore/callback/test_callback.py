"""CheckpointCallback under Model.train: exact resume, or a refusal before the first batch that says what to do."""

from __future__ import annotations

import contextlib
import functools
import shutil
import threading

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.train import Callback, LearningRateScheduler, Model, RunContext
from support.options import grouped
from support.training import (
    SIZE,
    UNSET_SEED,
    CrashError,
    Dropping,
    Interrupt,
    Job,
    Mlp,
    Steps,
    Stop,
    accumulation_cell,
    both_modes,
    checkpoints,
    crashed,
    digest,
    disturb,
    pipeline,
    reference,
    rng_digest,
    sums_prefix,
    tensors,
)

import ckptkit as ck
from ckptkit.storage import open_storage
from ckptkit.testing.faults import Fault, FaultyStorage


def names(root):
    return [one.name for one in ck.CheckpointManager(root).checkpoints()]


def part(steps, first, last):
    return {step: steps[step] for step in range(first, last + 1)}


# Exact resume


@pytest.mark.covering(1)
@both_modes
@pytest.mark.parametrize(
    "at",
    [
        pytest.param(7, id="mid-cycle-in-epoch-0"),
        pytest.param(9, id="boundary-in-epoch-0", marks=pytest.mark.extended),
        pytest.param(12, id="epoch-boundary-in-mid-cycle"),
        pytest.param(19, id="mid-cycle-in-epoch-1", marks=pytest.mark.extended),
        pytest.param(33, id="last-batch"),
    ],
)
def test_resumed_run_matches_uninterrupted_run_bitwise(root, mode, at):
    expected = reference(mode)
    assert crashed(root, at, mode=mode).trace.steps == part(expected, 1, at)
    resumed = Job(mode=mode).resumed(checkpoints(root), 3)
    assert resumed.steps == part(expected, at, 3 * SIZE)
    assert resumed.epochs[at] == (at - 1) // SIZE + 1


def test_run_with_lost_root_resumes_from_mirror(root, tmp_path):
    mirror = tmp_path / "mirror"
    with contextlib.suppress(CrashError):
        Job().started(checkpoints(root, 6, mirror=mirror), 3, Interrupt(7))
    shutil.rmtree(root)
    resumed = Job().resumed(checkpoints(root, mirror=mirror), 3)
    assert resumed.steps == part(reference(), 7, 3 * SIZE)
    shutil.rmtree(root)
    assert checkpoints(root, mirror=mirror).resume(Job().model, pipeline(), 3).complete


def test_repeatedly_interrupted_run_has_every_bit(root):
    expected = reference()
    found = {}
    for at in (3, 4, 12, 13, 30):
        found |= crashed(root, at).trace.steps
    last = Job()
    found |= last.resumed(checkpoints(root), 3).steps
    assert found == expected


def test_checkpointing_does_not_change_training_bits(root):
    expected = reference()
    assert Job().started(checkpoints(root, 1), 2).steps == part(expected, 1, 22)


def test_operator_seeds_of_pynative_dropout_resume(root):
    cell = functools.partial(accumulation_cell, network=Dropping)
    expected = Job(cell=cell).uninterrupted(2).steps
    crashed(root, 7, 2, cell=cell)
    assert Job(cell=cell).resumed(checkpoints(root), 2).steps == part(expected, 7, 22)


def test_operator_seeds_that_nobody_set_resume_too(root):
    # ms.set_seed was never called, only the weights are built alike.
    def alike():
        np.random.seed(3)
        return accumulation_cell(network=Dropping)

    def last_of(where, at=None):
        job = Job(seed=None, cell=alike)
        with contextlib.suppress(CrashError):
            job.started(checkpoints(where, 6), 1, *([Interrupt(at)] if at else []))
        return job.trace.steps

    first = last_of(root, 8)
    assert last_of(root, 8) == part(first, 7, 8)


def test_weights_built_otherwise_are_replaced(root):
    expected = reference()
    crashed(root, 7, 2)
    job = Job(seed=6)
    ds.config.set_seed(5)
    assert job.resumed(checkpoints(root), 2).steps == part(expected, 7, 22)


def test_clipping_and_learning_rate_schedule_resume(root):
    def scheduled(weights):
        return nn.Momentum(weights, nn.ExponentialDecayLR(0.1, 0.5, 2, is_stair=True), 0.9)

    cell = functools.partial(accumulation_cell, optimizer=scheduled, clip_norm=0.1)
    expected = Job(cell=cell).uninterrupted(2).steps
    crashed(root, 15, 2, cell=cell)
    assert Job(cell=cell).resumed(checkpoints(root), 2).steps == part(expected, 15, 22)


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


def test_callbacks_may_be_one_object(root):
    job, ckpt = Job(), checkpoints(root)
    ckpt.resume(job.model, job.data, epochs=1)
    job.model.train(1, job.data, callbacks=ckpt)
    assert names(root)[-1] == "a000001-c0000000002-m0003"
    ckpt.train(job.model, 2, job.data, callbacks=job.trace)
    assert len(job.trace.steps) == SIZE


def test_callback_listed_twice_is_used_once_last(root):
    """A callback that is named in the list too is used once, and last."""
    expected = reference()
    job, ckpt, ends = Job(), checkpoints(root), []
    end = ckpt.on_train_step_end
    ckpt.on_train_step_end = lambda run_context: ends.append(run_context) or end(run_context)
    ckpt.train(job.model, 1, job.data, callbacks=[ckpt, job.trace])
    assert job.trace.steps == part(expected, 1, 11)
    assert len(ends) == 11


def test_the_same_callback_serves_a_second_training(root):
    expected = reference()
    job, ckpt = Job(), checkpoints(root)
    ckpt.train(job.model, 1, job.data, callbacks=[job.trace])
    disturb()
    ckpt.train(job.model, 3, job.data, callbacks=[job.trace])
    assert part(job.trace.steps, 12, 33) == part(expected, 12, 33)
    with pytest.raises(ck.ResumeError, match=r"ckpt\.resume"):
        job.model.train(3, job.data, callbacks=[ckpt])


@pytest.mark.parametrize("at", [7, pytest.param(12, marks=pytest.mark.extended)])
def test_draws_before_first_batch_are_undone(root, at):
    """Draws between resume and the first batch are undone."""

    class Draws(Callback):
        def on_train_begin(self, run_context):
            np.random.rand()

    expected = Job().uninterrupted(2, Draws()).steps
    crashed(root, at, 2, Draws())
    job, ckpt = Job(), checkpoints(root)
    point = ckpt.resume(job.model, job.data, epochs=2)
    disturb()
    job.model.train(2, job.data, callbacks=[job.trace, Draws(), ckpt], initial_epoch=point.epoch)
    assert job.trace.steps == part(expected, at, 22)


def test_draws_at_epoch_begin_are_not_repeated(root):
    """What other callbacks draw at the beginning of an epoch is not drawn twice."""

    class Shuffles(Callback):
        def on_train_epoch_begin(self, run_context):
            np.random.rand()

    expected = Job().uninterrupted(3, Shuffles()).steps
    crashed(root, 16, 3, Shuffles())  # within epoch 1, whose beginning drew already
    crashed(root, 23, 3, Shuffles())  # at the end of epoch 1: the next beginning has to draw
    assert Job().resumed(checkpoints(root), 3, Shuffles()).steps == part(expected, 23, 33)


# When training ends


def test_finished_run_trains_nothing_and_says_so(root, shown):
    first = Job()
    first.started(checkpoints(root), 2)
    again = Job()
    steps = Steps()
    disturb()
    point = checkpoints(root).train(again.model, 2, again.data, callbacks=[steps, again.trace])
    assert point.complete
    assert point.checkpoint == names(root)[-1]
    assert steps.begun == 0
    assert "training is complete (22 batches are 2 epochs); nothing to do" in shown()
    assert (shown().count("starting afresh at"), shown().count("resuming from a000001-")) == (1, 1)
    assert tensors(again.cell) == tensors(first.cell)
    assert again.cell.counters == first.cell.counters


def test_run_that_ended_within_an_epoch_says_where(root, shown):
    first = Job()
    checkpoints(root).train(first.model, 3, first.data, callbacks=[Stop(15), first.trace])
    again = Job()
    assert checkpoints(root).train(again.model, 1, again.data, callbacks=[again.trace]).complete
    assert "(15 batches are 1 epoch and 4 batches of the next)" in shown()
    assert "To train on, give more than 1 epoch; you gave 1." in shown()
    assert again.data.get_init_step() == 0
    assert ds.config.get_fast_recovery()


def test_fewer_epochs_than_trained_are_complete(root):
    Job().started(checkpoints(root), 2)
    job = Job()
    assert checkpoints(root).resume(job.model, job.data, epochs=1).complete


def test_more_epochs_continue_a_finished_training(root):
    expected = reference()
    Job().started(checkpoints(root), 2)
    assert Job().resumed(checkpoints(root), 3).steps == part(expected, 23, 33)


def test_stop_in_mid_epoch_does_not_end_it(root):
    """A run that was stopped in the middle of an epoch resumes in the middle of that epoch."""
    expected = reference()
    stopped = Job()
    stopped.started(checkpoints(root), 2, Stop(15))
    assert names(root) == ["a000001-c0000000003-m0003"]
    job = Job()
    assert job.resumed(checkpoints(root), 2).steps == part(expected, 16, 22)


def test_end_of_training_is_committed_whatever_the_schedule(root):
    job = Job()
    job.started(checkpoints(root, save=ck.SaveEvery(optimizer_steps=1000)), 2)
    assert names(root) == ["a000001-c0000000005-m0002"]


def test_save_at_last_batch_happens_at_epoch_end(root):
    seen = []

    class Looks(Callback):
        def on_train_step_end(self, run_context):
            seen.append(("step", len(names(root))))

        def on_train_epoch_end(self, run_context):
            seen.append(("epoch", len(names(root))))

    job = Job()
    ckpt = checkpoints(root, SIZE)
    ckpt.train(job.model, 2, job.data, callbacks=[Looks()])
    assert [what for what, _ in seen] == [*["step"] * SIZE, "epoch"] * 2
    assert seen[SIZE] == ("epoch", 0)
    assert len(names(root)) == 2


def test_fresh_start_with_used_cell_is_refused(root):
    job, steps = Job(), Steps()
    job.uninterrupted(1)
    with pytest.raises(ck.ResumeError, match=r"called 11 times already\. Build a new one"):
        checkpoints(root).train(job.model, 2, job.data, callbacks=[steps])
    assert steps.begun == 0
    assert job.data.get_init_step() == 0


# Saves that fail or last


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


def test_on_save_error_raise_tolerates_none(root):
    storage = storage_with(root, Fault("error", operations={"write"}, times=None))
    job = Job()
    with pytest.raises(ck.SaveFailedError, match=r"1 in a row"):
        job.started(checkpoints(storage, 1, on_save_error="raise"), 2)
    assert max(job.trace.steps) == 2


def test_two_failed_saves_are_forgiven(root):
    expected = reference()
    fault = Fault("error", operations={"write"}, times=2)
    assert Job().started(checkpoints(storage_with(root, fault), 1), 1).steps == part(expected, 1, 11)
    assert fault.fired == 2
    assert names(root)[-1] == "a000001-c0000000002-m0003"


def test_final_save_that_fails_is_tried_again(root):
    fault = Fault("error", operations={"write"}, times=2)
    job = Job()
    job.started(checkpoints(storage_with(root, fault)), 1)
    assert fault.fired == 2
    # The failed folders' names are spent.
    assert [name.partition("-t")[0] for name in names(root)] == ["a000001-c0000000002-m0003"]


def test_final_save_that_cannot_succeed_raises(root):
    storage = storage_with(root, Fault("error", operations={"write"}, times=None))
    job = Job()
    with pytest.raises(ck.SaveFailedError):
        job.started(checkpoints(storage), 1)


class Held:
    """Blocks the first write until it is let go."""

    def __init__(self, root):
        self.reached, self.let_go = threading.Event(), threading.Event()
        self.storage = storage_with(root, Fault(self._hold, operations={"write"}))

    def _hold(self):
        self.reached.set()
        assert self.let_go.wait(60)


def test_exception_in_training_lets_a_started_save_finish(root):
    held = Held(root)

    class Crash(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == 6:
                assert held.reached.wait(60)
                assert names(root) == []  # nothing is committed while the exception begins its way
                threading.Timer(0.05, held.let_go.set).start()
                raise CrashError

    job = Job()
    ckpt = checkpoints(held.storage, 5, when_busy="skip")
    with pytest.raises(CrashError):
        job.started(ckpt, 2, Crash())
    assert names(root) == ["a000001-c0000000001-m0001"]
    expected = reference()
    assert Job().resumed(checkpoints(root), 2).steps == part(expected, 6, 22)


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


def test_training_continues_during_save_and_end_waits(root):
    """Training goes on while a save is written, and the end of training waits for it."""
    held = Held(root)
    at_the_end = []

    class Ends(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == 2 * SIZE:
                assert held.reached.wait(60)
                at_the_end.append(names(root))
                threading.Timer(0.05, held.let_go.set).start()

    expected = reference()
    job = Job()
    ckpt = checkpoints(held.storage, 1, when_busy="skip")
    assert job.started(ckpt, 2, Ends()).steps == part(expected, 1, 22)
    assert at_the_end == [[]]
    saved = names(root)
    assert saved[0] == "a000001-c0000000000-m0001"
    assert saved[-1] == "a000001-c0000000005-m0002"
    assert Job().resumed(checkpoints(root), 3).steps == part(reference(), 23, 33)


def test_save_holds_state_of_its_own_step(root):
    held = Held(root)

    class Crash(Interrupt):
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == self.at:
                held.let_go.set()
            super().on_train_step_end(run_context)

    job = Job()
    with pytest.raises(CrashError):
        job.started(checkpoints(held.storage, 5, when_busy="skip"), 2, Crash(9))
    # Written only after the updates of steps 8 and the gradients of 6, 7 and 9.
    assert names(root) == ["a000001-c0000000001-m0001"]
    expected = reference()
    assert Job().resumed(checkpoints(root), 2).steps == part(expected, 6, 22)


def test_run_taken_over_stops_at_next_step(root):
    class Rival(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == 5:
                other = Job()
                checkpoints(root).resume(other.model, other.data, epochs=2)

    job = Job()
    with pytest.raises(ck.StaleAttemptError):
        job.started(checkpoints(root, 1), 2, Rival())
    # The save of step 4, still being written, may be the first to notice; else it is that of step 5.
    assert max(job.trace.steps) in (5, 6)


# Refusals


class Witness:
    """Everything that must not change when a start is refused."""

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
    """A run that crashed in epoch 1."""
    crashed(root, 15, 2)
    return root


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param(
            {"data": functools.partial(pipeline, 40)},
            r"batches per epoch.*checkpoint has 11, .* has 10",
            id="size",
        ),
        pytest.param(
            {"data": functools.partial(pipeline, 55, 5)},
            r"samples per batch: the checkpoint has 4, this dataset has 5",
            id="batch-size",
        ),
        pytest.param(
            {"seed": 6},
            r"the dataset seed: the checkpoint has 5, this process set 6.*ms\.set_seed\(5\)",
            id="seed",
        ),
        pytest.param(
            {"cell": functools.partial(accumulation_cell, 3)},
            r"accumulation_steps=4, this train cell has 3\. Build it with accumulation_steps=4",
            id="K",
        ),
        pytest.param({"data": lambda: pipeline().rename(["x", "y"], ["a", "b"])}, r"columns.*'x'.*'a'", id="columns"),
    ],
)
def test_what_differs_is_refused_before_anything_changes(stored, changed, message):
    job = Job(**changed)
    disturb()
    witness = Witness(job)
    attempts = sorted(stored.glob("attempts/*"))
    with pytest.raises(ck.ResumeError, match=r"(?s)" + message):
        checkpoints(stored).train(job.model, 2, job.data, callbacks=[witness.steps])
    assert witness.unchanged()
    # A start that is refused takes nothing over from a job that runs.
    assert sorted(stored.glob("attempts/*")) == attempts


def test_another_model_is_refused_before_anything_changes(stored, monkeypatch):
    monkeypatch.setenv("CKPTKIT_DEBUG", "1")

    class Wider(Mlp):
        def __init__(self):
            super().__init__()
            self.out = nn.Dense(8, 3, has_bias=False)
            self.extra = nn.Dense(8, 2)
            self.hidden = nn.Dense(6, 9)
            self.norm = nn.BatchNorm1d(9)

    job = Job(cell=functools.partial(accumulation_cell, network=Wider))
    disturb()
    witness = Witness(job)
    with pytest.raises(ck.StateMismatchError) as raised:
        checkpoints(stored).train(job.model, 2, job.data, callbacks=[witness.steps])
    assert witness.unchanged()
    lines = str(raised.value).splitlines()[1:]
    moments = ("", "moment1.", "moment2.", sums_prefix())
    assert {line.strip() for line in lines} >= {
        *(f"missing in the checkpoint: {prefix}extra.weight" for prefix in moments),
        *(f"not in this training: {prefix}out.bias" for prefix in moments),
        *(f"{prefix}hidden.weight: the checkpoint has F32 [8, 6], this training has F32 [9, 6]" for prefix in moments),
        "norm.moving_mean: the checkpoint has F32 [8], this training has F32 [9]",
    }


def test_forgotten_initial_epoch_is_refused(stored):
    job, ckpt = Job(), checkpoints(stored)
    point = ckpt.resume(job.model, job.data, epochs=2)
    assert point.epoch == 1
    steps, before = Steps(), digest(job.cell)
    with pytest.raises(ck.ResumeError, match=r"begin at epoch 0, but .* epoch 1: pass initial_epoch=1"):
        job.model.train(2, job.data, callbacks=[steps, ckpt])
    assert steps.begun == 0
    assert digest(job.cell) == before


@pytest.mark.parametrize(("epochs", "initial_epoch"), [(3, 1), (3, 2), (2, 0)])
def test_other_epochs_than_resume_got_are_refused(stored, epochs, initial_epoch):
    job, ckpt = Job(), checkpoints(stored)
    ckpt.resume(job.model, job.data, epochs=2)
    steps = Steps()
    with pytest.raises(ck.ResumeError, match=r"pass initial_epoch=1"):
        job.model.train(epochs, job.data, callbacks=[steps, ckpt], initial_epoch=initial_epoch)
    assert steps.begun == 0


def test_refused_training_can_start_in_same_process(stored):
    expected = reference()
    job, ckpt = Job(), checkpoints(stored)
    ckpt.resume(job.model, job.data, epochs=2)
    with pytest.raises(ck.ResumeError):
        job.model.train(2, job.data, callbacks=[ckpt])
    assert ds.config.get_fast_recovery()
    assert job.data.get_init_step() == 0
    assert job.started(ckpt, 2).steps == part(expected, 15, 22)


def test_forgotten_resume_is_refused(root):
    job, steps = Job(), Steps()
    with pytest.raises(ck.ResumeError, match=r"call ckpt\.resume\(model, dataset, epochs\) before Model\.train"):
        job.model.train(2, job.data, callbacks=[steps, checkpoints(root)])
    assert steps.begun == 0


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


@pytest.mark.parametrize("method", ["train", "fit"])
def test_initial_epoch_is_not_for_the_caller(root, method):
    job = Job(fit=True)
    arguments = (job.model, 2, job.data, *([job.valid] if method == "fit" else []))
    with pytest.raises(ValueError, match=r"initial_epoch is decided by the checkpoint"):
        getattr(checkpoints(root), method)(*arguments, initial_epoch=1)
    assert not root.exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [({"when_busy": "never"}, "when_busy"), ({"on_save_error": "ignore"}, "on_error")],
)
def test_wrong_option_is_an_error_at_once(root, option, message):
    with pytest.raises(ValueError, match=message):
        ck.CheckpointCallback(root, **grouped(**option))


def test_unknown_url_is_an_error_at_once():
    with pytest.raises(ck.StorageError, match=r"nowhere://"):
        ck.CheckpointCallback("nowhere://bucket/run")


# Cells that no checkpoint can bring back


class Dropout(Mlp):
    def __init__(self):
        super().__init__()
        self.regular = nn.SequentialCell(nn.Dropout(p=0.5))


def test_dropout_cell_is_named_and_refused_when_strict(root, shown):
    job = Job(cell=functools.partial(accumulation_cell, network=Dropout))
    with pytest.raises(ck.ResumeError, match=r"strict=False:\n.*network\.regular\.0 \(nn\.Dropout\)"):
        checkpoints(root, strict=True).train(job.model, 2, job.data, callbacks=[job.trace])
    assert not job.trace.steps
    assert not root.exists()
    checkpoints(root).resume(job.model, job.data, epochs=2)
    assert "network.regular.0 (nn.Dropout)" in shown()
    assert "may not be bit-exact" in shown()


def test_network_without_dropout_passes_strict_without_a_word(root, shown):
    job = Job()
    checkpoints(root, strict=True).resume(job.model, job.data, epochs=2)
    assert "bit-exact" not in shown()


# Seeds that nobody set


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


def test_interrupted_run_with_unset_seed_keeps_batches(root):
    first = crashed(root, 7, 2, seed=None)
    job = Job(seed=None)
    job.resumed(checkpoints(root), 2)
    # The last step of the first life is the first of the second, and the whole epoch has every sample once.
    assert job.trace.steps[7] == first.trace.steps[7]
    whole = [*part(first.trace.batches, 1, 6).values(), *part(job.trace.batches, 7, 11).values()]
    assert len(set(whole)) == SIZE
    assert len({*part(job.trace.batches, 12, 22).values()} - {*whole}) > 0


# Other callbacks


def test_step_number_goes_on(root):
    crashed(root, 15, 2)
    seen = []

    class Looks(Callback):
        def on_train_step_begin(self, run_context):
            seen.append(run_context.original_args().cur_step_num)

    Job().resumed(checkpoints(root), 2, Looks())
    assert seen == list(range(15, 23))


class Counter(Callback):
    """A callback of the user's own whose state matters: it scales what the others draw."""

    def __init__(self):
        self.seen = 0

    def on_train_step_end(self, run_context):
        self.seen += run_context.original_args().cur_step_num

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


@pytest.mark.parametrize("is_given", [True, False])
def test_callback_with_a_state_resumes(root, shown, is_given):
    def given(counter):
        return {"counter": counter} if is_given else None

    counter = Counter()
    crashed(root, 15, 2, counter, stateful=given(counter))
    again = Counter()
    Job().resumed(checkpoints(root, stateful=given(again)), 2, again)
    assert again.seen == sum(range(1, 23))
    assert "also stored, since training changes them: Counter().seen" in shown()


@pytest.mark.parametrize("kind", [Counter, lambda: LearningRateScheduler(lambda rate, step: rate / 2)])
def test_callback_that_changes_after_the_save_is_refused(root, kind):
    job, late, steps = Job(), kind(), Steps()
    ckpt = checkpoints(root, stateful={"counter": late} if kind is Counter else None)
    ckpt.resume(job.model, job.data, epochs=1)
    with pytest.raises(ck.ResumeError, match=f"{type(late).__name__} would change .*put CheckpointCallback last"):
        job.model.train(1, job.data, callbacks=[steps, ckpt, late])
    assert steps.begun == 0


def test_a_second_checkpoint_callback_is_refused_at_once(root):
    job, steps = Job(), Steps()
    both = [checkpoints(root), checkpoints(root.with_name("other"))]
    for ckpt in both:
        ckpt.resume(job.model, job.data, epochs=1)
    with pytest.raises(ck.ResumeError, match=r"this training has two CheckpointCallbacks.*mirror="):
        job.model.train(1, job.data, callbacks=[steps, *both])
    assert steps.begun == 0
    assert names(root) == []


def test_stateful_objects_that_differ_are_refused_by_name(root):
    crashed(root, 7, 2, stateful={"old": Counter(), "both": Counter()})
    job = Job()
    disturb()
    witness = Witness(job)
    with pytest.raises(ck.StateMismatchError, match=r"now but not in the checkpoint: \['new'\].*\['old'\]"):
        checkpoints(root, stateful={"new": Counter(), "both": Counter()}).train(job.model, 2, job.data)
    assert witness.unchanged()


def test_name_of_the_companions_is_taken(root):
    with pytest.raises(ValueError, match="needs itself: callbacks"):
        ck.CheckpointCallback(root, stateful={"callbacks": Counter()})


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


# Cells of MindSpore's own


class Plain(nn.Cell):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Dense(6, 8)
        self.out = nn.Dense(8, 3)

    def construct(self, x):
        return self.out(self.hidden(x))


class Stock(Job):
    """``Model(net, loss, optimizer)`` or a cell of MindSpore's own, which Model calls once per batch."""

    def __init__(self, make, *, mode="pynative"):
        super().__init__(mode=mode)
        network = Plain()
        self.model = make(network, nn.Adam(network.trainable_params(), 1e-2))
        self.cell = self.model.train_network


def compiled_by_model(network, optimizer):
    return Model(network, nn.MSELoss(), optimizer)


class LossScaled(nn.TrainOneStepWithLossScaleCell):
    """With a check for overflow that has kernels on CPU, in the place that MindSpore has for one's own."""

    def get_overflow_status(self, status, compute_output):
        # By the scale and not by the gradients: whether a sum just overflows depends on its order, which the first
        # run of a process and later ones need not share.
        return ops.greater(self.scale_sense, 2.0**100)


def with_loss_scale(network, optimizer):
    # Overflows at first, as training with a dynamic scale does, so that steps go by without an update.
    scale = nn.DynamicLossScaleUpdateCell(loss_scale_value=2.0**127, scale_factor=2**20, scale_window=3)
    return Model(LossScaled(nn.WithLossCell(network, nn.MSELoss()), optimizer, scale))


@pytest.mark.covering(1)
@both_modes
@pytest.mark.parametrize("make", [compiled_by_model, with_loss_scale])
@pytest.mark.parametrize("at", [3, 15])
def test_cell_of_mindspore_resumes_exactly(root, mode, make, at):
    expected = Stock(make, mode=mode).uninterrupted(2).steps
    first = Stock(make, mode=mode)
    with pytest.raises(CrashError):
        first.started(checkpoints(root, at - 1), 2, Interrupt(at))
    # Every call counts as a cycle of one micro-step.
    assert names(root)[-1] == f"a000001-c{at - 1:010}-m0000"
    assert Stock(make, mode=mode).resumed(checkpoints(root), 2).steps == part(expected, at, 22)


def test_overflowing_steps_are_there_in_the_test_above():
    job = Stock(with_loss_scale)
    job.uninterrupted(2)
    assert 0 < job.cell.optimizer.global_step.asnumpy()[0] < 22


@pytest.mark.parametrize("hook", ["on_train_epoch_begin", pytest.param("on_train_begin", marks=pytest.mark.extended)])
def test_a_stateful_callback_that_resets_itself_goes_on(tmp_path, hook):
    """Resumed in the middle of an epoch, where both hooks come a second time."""

    class Counter(Callback):
        def __init__(self):
            self.count = 0
            self.seen = {}

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

        def on_train_step_end(self, run_context):
            self.count += 1
            self.seen[run_context.original_args().cur_step_num] = self.count

    def reset(self, run_context):
        self.count = 0

    setattr(Counter, hook, reset)
    expected = Counter()
    Job().uninterrupted(2, expected)
    broken = Counter()
    crashed(tmp_path, 15, 2, broken, stateful={"counter": broken})
    resumed = Counter()
    Job().resumed(checkpoints(tmp_path, stateful={"counter": resumed}), 2, resumed)
    assert resumed.seen == expected.seen  # also what no state_dict() gives
