"""What a training around the checkpoints does that would make a resumed run differ: undone, refused, or named."""

from __future__ import annotations

import ctypes
import os
from inspect import signature

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import ops
from mindspore.train import Callback, EarlyStopping
from support.options import grouped
from support.training import SIZE, Job, accumulation_cell, checkpoints, crashed, disturb, reference, tensors

import ckptkit as ck


def names_of(kind, begin):
    gathered = signature(kind).parameters.items()
    return [name for name, item in gathered if item.kind is not item.VAR_KEYWORD][begin:]


class Changing(Callback):
    def on_train_begin(self, run_context):
        np.random.rand()
        ops.assign(run_context.original_args().train_network.optimizer.learning_rate, ms.Tensor(0.5, ms.float32))

    def on_train_epoch_begin(self, run_context):
        np.random.rand()
        rate = run_context.original_args().train_network.optimizer.learning_rate
        ops.assign(rate, rate * 0.5)


def test_changes_in_begin_hooks_happen_once(root):
    expected = Job().uninterrupted(2, Changing()).steps
    for at in (3, SIZE + 1, SIZE + 4):  # within an epoch, and at the end of one, where the next beginning is due
        crashed(root, at, 2, Changing())
    assert Job().resumed(checkpoints(root), 2, Changing()).steps == {
        step: expected[step] for step in range(SIZE + 4, 2 * SIZE + 1)
    }
    job, ckpt = Job(), checkpoints(root.with_name("other"))
    crashed(root.with_name("other"), 7, 2, Changing())
    point = ckpt.resume(job.model, job.data, epochs=2)
    disturb()
    job.model.train(2, job.data, callbacks=[job.trace, Changing(), ckpt], initial_epoch=point.epoch)
    assert job.trace.steps == {step: expected[step] for step in range(7, 2 * SIZE + 1)}


class Level:
    """Holds what nothing but its two methods can store."""

    def __init__(self):
        self.held = ctypes.c_double(5.0)

    def state_dict(self):
        return {"value": self.held.value}

    def load_state_dict(self, state):
        self.held.value = state["value"]


class Resetting(Callback):
    def __init__(self, level):
        super().__init__()
        self._level = level

    def on_train_begin(self, run_context):
        self._level.held.value = -1.0

    def on_train_step_end(self, run_context):
        self._level.held.value += 1.0


def test_object_given_by_name_is_put_back_after_begin_hooks(root):
    before, level = Level(), Level()
    crashed(root, 3, 1, Resetting(before), stateful={"level": before})
    Job().resumed(checkpoints(root, stateful={"level": level}), 1, Resetting(level))
    assert level.held.value == SIZE - 1


def test_mid_cycle_early_stopping_completes_run(root, shown):
    def fitted():
        job = Job(fit=True, cell=lambda: accumulation_cell(5))
        stopping = EarlyStopping(monitor="mae", patience=1, mode="max", restore_best_weights=True)
        point = checkpoints(root, 2).fit(job.model, 9, job.data, job.valid, callbacks=[stopping])
        return job, point

    first, _ = fitted()
    assert first.cell.counters.micro_step != 0
    restarted, point = fitted()
    assert point.complete
    assert "EarlyStopping stopped it at epoch" in shown()
    assert tensors(restarted.cell) == tensors(first.cell)


class Growing:
    def __init__(self, first):
        self.first = first
        self.epoch = 0

    def __iter__(self):
        rows = self.first if self.epoch == 0 else 12
        self.epoch += 1
        for row in range(rows):
            yield np.full(6, row, np.float32), np.full(3, row, np.float32)


def test_changed_epoch_length_ends_training(root):
    for first in (8, 16):
        job = Job(data=lambda first=first: ds.GeneratorDataset(Growing(first), ["x", "y"]).batch(4))
        with pytest.raises(ck.ResumeError, match=r"an epoch has \d batches, but epoch \d has another number"):
            job.started(checkpoints(root / str(first)), 3)


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


def test_wrong_resume_arguments_are_refused_before_write(root):
    job = Job()
    for arguments, error, message in (
        ((job.cell, job.data, 2), TypeError, r"takes a mindspore\.train\.Model .* AccumulationTrainCell"),
        ((job.data, job.model, 2), TypeError, r"takes a mindspore\.train\.Model"),
        ((job.model, [1, 2], 2), TypeError, r"a mindspore\.dataset pipeline, got Model and list"),
        ((job.model, job.data, 0), ValueError, r"at least 1, got 0"),
        ((job.model, job.data, True), ValueError, r"at least 1, got True"),
        ((job.model, job.data, 2.0), ValueError, r"at least 1, got 2\.0"),
    ):
        with pytest.raises(error, match=message):
            checkpoints(root).resume(*arguments)
    assert not root.exists()


def test_wrong_callback_options_are_refused_at_construction(root):
    taken = [*names_of(ck.StateManager, 0), "callbacks", "trainer_loop"]
    for options, message in (
        ({"save": 100}, r"save must be a policy such as SaveEvery"),
        ({"keep": 3}, r"keep must be a policy"),
        ({"when_busy": "never"}, "when_busy"),
        *(({"stateful": {name: object()}}, rf"needs itself: {name}") for name in taken),
    ):
        with pytest.raises(ValueError, match=message):
            ck.CheckpointCallback(root, **grouped(**options))
    with pytest.raises(ValueError, match="the run root is empty"):
        ck.CheckpointCallback("")
    with pytest.raises(ck.StorageError, match=r"nowhere://"):
        ck.CheckpointCallback("nowhere://bucket/run")


def test_every_option_reaches_what_it_is_for(root):
    ranks, training = ck.Ranks(check_replicas=True), ck.Training(augmentation="stateless", read_only=[Changing])
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
        usual = {name: item.default for name, item in signature(of).parameters.items() if name in given}
        assert vars(plain)[made].keywords == usual
    assert vars(full)["_training"].read_only == (Changing,)
    own = {"storage_options", "stateful"}
    assert for_the_manager.keys() | for_the_state.keys() | own == {*names_of(ck.CheckpointCallback, 1)}


class Stubborn:
    def state_dict(self):
        return {"count": 1}

    def load_state_dict(self, state):
        raise RuntimeError("no")


def test_what_does_not_train_restores_process_settings(root):
    before = Job(seed=None) and (ds.config.get_seed(), ds.config.get_fast_recovery())

    def is_restored(job):
        unchanged = (ds.config.get_seed(), ds.config.get_fast_recovery()) == before
        return unchanged and job.data.get_init_step() == 0 and "create_tuple_iterator" not in vars(job.data)

    job = Job(seed=None)
    with pytest.raises(TypeError):  # of Model.train, before any callback was called
        checkpoints(root).train(job.model, 2, job.data, no_such_option=1)
    assert is_restored(job)
    job = Job(seed=None)
    job.started(checkpoints(root, stateful={"held": Stubborn()}), 1)
    job = Job(seed=None)
    with pytest.raises(RuntimeError, match="no"):
        checkpoints(root, stateful={"held": Stubborn()}).resume(job.model, job.data, 2)
    assert is_restored(job)
    Job(seed=None).started(checkpoints(root.with_name("other")), 1)
    job = Job(seed=None)
    assert checkpoints(root.with_name("other")).resume(job.model, job.data, 1).complete
    assert is_restored(job)


def test_frozen_names_are_asked_at_each_resume(root):
    """They may have been given as something that can be read once."""
    ckpt = checkpoints(root, frozen=iter(["nobody"]))
    for _ in range(2):
        job = Job()
        with pytest.raises(ck.StateMismatchError, match="parameters that do not exist: nobody"):
            ckpt.resume(job.model, job.data, 1)
