"""What a training around the checkpoints does that would make a resumed run differ: undone, refused, or named."""

from __future__ import annotations

import os
from inspect import signature

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import ops
from mindspore.train import Callback, EarlyStopping
from support.options import grouped
from support.training import SIZE, Job, accumulation_cell, checkpoints, crashed, reference, tensors

import ckptkit as ck


def names_of(kind, begin):
    """Names of the arguments that it is made with, but for the first ones and for those that have any name."""
    found = signature(kind).parameters.items()
    return [name for name, one in found if one.kind is not one.VAR_KEYWORD][begin:]


class Halving(Callback):
    """Halves the learning rate at the beginning of every epoch, as its only state."""

    def on_train_epoch_begin(self, run_context):
        rate = run_context.original_args().train_network.optimizer.learning_rate
        ops.assign(rate, rate * 0.5)


class Resetting(Callback):
    """Sets the learning rate when training begins."""

    def on_train_begin(self, run_context):
        rate = run_context.original_args().train_network.optimizer.learning_rate
        ops.assign(rate, ms.Tensor(0.5, ms.float32))


@pytest.mark.covering(1)
@pytest.mark.parametrize("at", [3, SIZE + 4, SIZE + 1], ids=["epoch 0", "epoch 1", "epoch boundary"])
@pytest.mark.parametrize("kind", [Halving, Resetting])
def test_parameter_changes_in_begin_hooks_happen_once(root, kind, at):
    expected = Job().uninterrupted(3, kind()).steps
    crashed(root, at, 3, kind())
    assert Job().resumed(checkpoints(root), 3, kind()).steps == {
        step: expected[step] for step in range(at, 3 * SIZE + 1)
    }


def test_mid_cycle_early_stopping_completes_run(root, shown):
    """Early stopping restores the best weights, and a resume does not go on."""

    def fitted():
        job = Job(fit=True, cell=lambda: accumulation_cell(5))
        stopping = EarlyStopping(monitor="mae", patience=1, mode="max", restore_best_weights=True)
        point = checkpoints(root, 2).fit(job.model, 9, job.data, job.valid, callbacks=[stopping])
        return job, point

    first, _ = fitted()
    assert first.cell.counters.micro_step != 0
    again, point = fitted()
    assert point.complete
    assert "EarlyStopping stopped it at epoch" in shown()
    assert tensors(again.cell) == tensors(first.cell)


class Growing:
    """One sample fewer in the first epoch than in the others; its length says otherwise."""

    def __init__(self, first):
        self.first = first
        self.epoch = 0

    def __iter__(self):
        rows = self.first if self.epoch == 0 else 12
        self.epoch += 1
        for row in range(rows):
            yield np.full(6, row, np.float32), np.full(3, row, np.float32)


@pytest.mark.parametrize("first", [8, 16], ids=["shorter", "longer"])
def test_changed_epoch_length_ends_training(root, first):
    """It ends before a position would be wrong."""
    job = Job(data=lambda: ds.GeneratorDataset(Growing(first), ["x", "y"]).batch(4))
    with pytest.raises(ck.ResumeError, match=r"an epoch has \d batches, but epoch \d has another number"):
        job.started(checkpoints(root), 3)


class Clipping(Callback):
    def on_train_step_end(self, run_context):
        pass


def test_callback_after_checkpoint_callback_is_named(root, shown):
    job = Job()
    ckpt = checkpoints(root)
    point = ckpt.resume(job.model, job.data, 1)
    job.model.train(1, job.data, callbacks=[ckpt, Clipping()], initial_epoch=point.epoch)
    assert "Clipping comes after CheckpointCallback" in shown()


def test_relative_root_is_resolved_when_callback_is_made(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ckpt = checkpoints("run")
    Job().started(ckpt, 1)
    os.chdir(tmp_path / "there")
    trace = Job().resumed(ckpt, 2)
    assert trace.steps == {step: reference()[step] for step in range(SIZE + 1, 2 * SIZE + 1)}
    assert list((tmp_path / "there").iterdir()) == []


def test_non_numeric_metrics_do_not_end_training(root, shown):
    class Set:
        def clear(self):
            pass

        def update(self, *outputs):
            pass

        def eval(self):
            return {1, 2}

    job = Job(fit=True)
    job.model._metric_fns["odd"] = Set()
    checkpoints(root, keep=ck.KeepBest(1, "mae", "min")).fit(job.model, 1, job.data, job.valid)
    assert "the metric odd is not a number" in shown()
    assert set(ck.CheckpointManager(root).checkpoints()[-1].metrics) == {"mae", "eval_loss"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda job: (job.cell, job.data, 2), TypeError, r"takes a mindspore\.train\.Model .* AccumulationTrainCell"),
        (lambda job: (job.data, job.model, 2), TypeError, r"takes a mindspore\.train\.Model"),
        (lambda job: (job.model, [1, 2], 2), TypeError, r"a mindspore\.dataset pipeline, got Model and list"),
        (lambda job: (job.model, job.data, 0), ValueError, r"at least 1, got 0"),
        (lambda job: (job.model, job.data, 2.0), ValueError, r"at least 1, got 2\.0"),
    ],
)
def test_wrong_resume_arguments_are_refused_before_write(root, arguments, error, message):
    job = Job()
    with pytest.raises(error, match=message):
        checkpoints(root).resume(*arguments(job))
    assert not root.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"save": 100}, r"save must be a policy such as SaveEvery"),
        ({"keep": 3}, r"keep must be a policy"),
        *(({"stateful": {name: object()}}, rf"needs itself: {name}") for name in names_of(ck.StateManager, 0)),
    ],
)
def test_wrong_callback_options_are_refused_at_construction(root, options, message):
    with pytest.raises(ValueError, match=message):
        ck.CheckpointCallback(root, **grouped(**options))


def test_every_option_reaches_what_it_is_for(root):
    ranks, training = ck.Ranks(check_replicas=True), ck.Training(augmentation="stateless", read_only=[Resetting])
    for_the_manager = {
        "save": ck.SaveEvery(micro_steps=7),
        "keep": ck.KeepLatest(5),
        "saving": ck.Saving(when_busy="wait"),
        "mirror": ck.Mirror(root.with_name("mirror"), required=False),
        "ranks": ranks,
        "preemption": ck.Preemption(then="return"),
    }
    for_the_state = {"frozen": ("a",), "strict": True, "training": training, "ranks": ranks}
    plain, full = (ck.CheckpointCallback(root, **given) for given in ({}, for_the_manager | for_the_state))
    for made, of, given in (
        ("_new_manager", ck.CheckpointManager, for_the_manager),
        ("_new_state", ck.StateManager, for_the_state),
    ):
        one_mirror = {"mirror": (given["mirror"],)} if "mirror" in given else {}
        assert vars(full)[made].keywords == given | one_mirror
        usual = {name: one.default for name, one in signature(of).parameters.items() if name in given}
        assert vars(plain)[made].keywords == usual
    assert vars(full)["_training"].read_only == (Resetting,)
    own = {"storage_options", "stateful"}
    assert for_the_manager.keys() | for_the_state.keys() | own == {*names_of(ck.CheckpointCallback, 1)}


def test_an_empty_root_is_refused():
    with pytest.raises(ValueError, match="the run root is empty"):
        ck.CheckpointCallback("")


def test_failed_train_call_restores_process_settings(root):
    """Model.train failed before any callback was called."""
    job = Job(seed=None)
    before = ds.config.get_seed(), ds.config.get_fast_recovery()
    with pytest.raises(TypeError):
        checkpoints(root).train(job.model, 2, job.data, no_such_option=1)
    assert (ds.config.get_seed(), ds.config.get_fast_recovery()) == before
    assert job.data.get_init_step() == 0


class Stubborn:
    def state_dict(self):
        return {"count": 1}

    def load_state_dict(self, state):
        raise RuntimeError("no")


def test_failed_resume_restores_process_settings(root):
    job = Job(seed=None)
    job.started(checkpoints(root, stateful={"held": Stubborn()}), 1)
    job = Job(seed=None)
    before = ds.config.get_seed()
    with pytest.raises(RuntimeError, match="no"):
        checkpoints(root, stateful={"held": Stubborn()}).resume(job.model, job.data, 2)
    assert ds.config.get_seed() == before
    assert "create_tuple_iterator" not in vars(job.data)


def test_complete_resume_restores_process_settings(root):
    Job(seed=None).started(checkpoints(root), 1)
    job = Job(seed=None)
    before = ds.config.get_seed()
    assert checkpoints(root).resume(job.model, job.data, 1).complete
    assert ds.config.get_seed() == before
    assert "create_tuple_iterator" not in vars(job.data)


def test_frozen_names_are_asked_at_each_resume(root):
    """They may have been given as something that can be read once."""
    ckpt = checkpoints(root, frozen=iter(["nobody"]))
    for _ in range(2):
        job = Job()
        with pytest.raises(ck.StateMismatchError, match="parameters that do not exist: nobody"):
            ckpt.resume(job.model, job.data, 1)


def test_process_can_resume_after_training_raised(root):
    job = Job()
    with pytest.raises(RuntimeError, match="boom"):
        job.started(checkpoints(root, 4), 3, Breaking(job, 6))
    again = Job()
    assert again.resumed(checkpoints(root), 3).steps == {step: reference()[step] for step in range(5, 3 * SIZE + 1)}


class Breaking(Callback):
    """Makes the forward pass of the micro-step after ``at`` raise."""

    def __init__(self, job, at):
        self.job = job
        self.at = at

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == self.at:

            def boom(*_):
                raise RuntimeError("boom")

            self.job.cell.network.logits = boom
