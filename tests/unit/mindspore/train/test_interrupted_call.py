"""What a foreign train cell, or a loop without one, leaves when a call does not return is not saved."""

from __future__ import annotations

import contextlib

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from support.training import begin_process

import ckptkit as ck
from ckptkit.errors import ResumeError

DATA = [(ms.Tensor(np.full((2, 3), one, np.float32)), ms.Tensor(np.zeros((2, 3), np.float32))) for one in range(1, 9)]

UNPROVEN = "nothing shows that the last one was trained"


class Stops(nn.Momentum):
    """An optimizer that raises what it is given, once, after its update, or calls it."""

    error = None

    def __call__(self, gradients):
        done = super().__call__(gradients)
        error, self.error = self.error, None
        if isinstance(error, BaseException):
            raise error
        if error is not None:
            error()
        return done


class Job:
    """A plain train cell over resumable batches, or a loop without a train cell."""

    def __init__(self, root, *, functional=False):
        begin_process(mode="pynative")
        self.network = nn.WithLossCell(nn.Dense(3, 3), nn.MSELoss())
        self.optimizer = Stops(self.network.trainable_params(), 0.1, 0.9)
        self.batches = ck.data.resumable(DATA, epochs=1)
        if functional:
            cells = [self.network, self.optimizer]
            differentiated = ms.value_and_grad(self.network, None, self.optimizer.parameters)
            self.call = lambda *batch: self.optimizer(differentiated(*batch)[1])
        else:
            cells = self.call = nn.TrainOneStepCell(self.network, self.optimizer).set_train()
        self.state = ck.StateManager(cells, self.batches)
        self.manager = ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1000))
        self.manager.restore(self.state)

    def committed(self):
        return [one.progress.batches_delivered for one in self.manager.checkpoints()]


@pytest.fixture(params=[False, True], ids=["train cell", "own loop"])
def job(request, tmp_path):
    one = Job(tmp_path, functional=request.param)
    yield one
    one.manager.close()


def refuses(job):
    for _ in range(2):  # asking again does not help
        with pytest.raises(ResumeError, match=UNPROVEN):
            job.manager.save_final(job.state)
        with pytest.raises(ResumeError, match=UNPROVEN):
            job.manager.save(job.state)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_call_that_raised_is_not_saved_while_its_error_is_handled(job, error):
    for at, batch in enumerate(job.batches):
        if at == 3:
            job.optimizer.error = error("now")
            try:
                job.call(*batch)
            except (KeyboardInterrupt, MemoryError):
                assert int(job.optimizer.global_step.asnumpy()[0]) == 4, "the update has not begun"
                refuses(job)
            break
        job.call(*batch)
        job.manager.step(job.state)
    assert job.committed() == []


@pytest.mark.parametrize("how", ["save", "save_final"])
def test_save_inside_of_a_call_is_refused(job, how):
    """As by a signal handler, or a hook of a cell."""
    tried = []

    def save():
        with pytest.raises(ResumeError, match=UNPROVEN):
            getattr(job.manager, how)(job.state)
        tried.append(how)

    for batch in job.batches:
        job.optimizer.error = save
        job.call(*batch)
        job.manager.step(job.state)
        break
    assert tried == [how]
    job.manager.save_final(job.state)
    assert job.committed() == [1]


def test_step_in_finally_does_not_make_the_batch_complete(tmp_path):
    job = Job(tmp_path, functional=True)
    job.manager.close()
    job.state = ck.StateManager([job.network, job.optimizer], batches := ck.data.resumable(DATA, epochs=1))
    job.manager = ck.CheckpointManager(tmp_path / "each", save=ck.SaveEvery(micro_steps=1))
    job.manager.restore(job.state)

    def train():
        for batch in batches:
            try:
                if job.state.progress().batches_delivered == 4:
                    raise KeyboardInterrupt
                job.call(*batch)
            finally:
                job.manager.step(job.state)
                job.manager.wait()

    with pytest.raises(KeyboardInterrupt):  # its save is put off to a step that there is not
        train()
    assert job.committed() == [1, 2, 3]
    job.manager.close()


def test_second_optimizer_that_did_not_run_is_seen(tmp_path):
    """In a GAN, the first one has updated its half."""
    begin_process(mode="pynative")
    pairs = [nn.WithLossCell(nn.Dense(3, 3), nn.MSELoss()) for _ in range(2)]
    for number, network in enumerate(pairs):
        network.update_parameters_name(f"{number}.")
    optimizers = [Stops(network.trainable_params(), 0.1, 0.9) for network in pairs]
    for number, optimizer in enumerate(optimizers):
        optimizer.update_parameters_name(f"of_{number}.")
    differentiated = [
        ms.value_and_grad(network, None, optimizer.parameters)
        for network, optimizer in zip(pairs, optimizers, strict=True)
    ]
    batches = ck.data.resumable(DATA, epochs=1)
    with ck.CheckpointManager(tmp_path, save=ck.SaveEvery(micro_steps=1000)) as manager:
        state = ck.StateManager([*pairs, *optimizers], batches)
        manager.restore(state)
        for batch in batches:
            optimizers[0](differentiated[0](*batch)[1])
            if state.progress().batches_delivered == 4:
                try:
                    raise KeyboardInterrupt
                except KeyboardInterrupt:
                    with pytest.raises(ResumeError, match=UNPROVEN):
                        manager.save_final(state)
                break
            optimizers[1](differentiated[1](*batch)[1])
            manager.step(state)
        assert manager.checkpoints() == []


@pytest.mark.parametrize("at", [3, 6])
def test_loop_that_updates_at_every_second_batch_says_what_is_trained(tmp_path, at):
    """While an error is handled, only `step` tells that a batch was trained."""
    job = Job(tmp_path, functional=True)
    for number, batch in enumerate(job.batches):
        if number % 2:
            job.call(*batch)
        if number == at:
            try:
                raise FloatingPointError
            except FloatingPointError:
                refuses(job)
            job.manager.step(job.state)
            try:
                raise FloatingPointError
            except FloatingPointError:
                job.manager.save_final(job.state)
            break
        job.manager.step(job.state)
    assert job.committed() == [at + 1]
    job.manager.close()


def test_restore_within_a_handler_is_saved(tmp_path):
    """The script goes on in ``except``, with the same cells."""
    job = Job(tmp_path)
    for at, batch in enumerate(job.batches):
        job.optimizer.error = RuntimeError("a device was lost") if at == 2 else None
        try:
            job.call(*batch)
        except RuntimeError:
            job.manager.close()
            with ck.CheckpointManager(tmp_path) as manager:
                state = ck.StateManager(job.call, ck.data.resumable(DATA, epochs=1))
                assert manager.restore(state).batches_delivered == 2
                assert manager.save(state, {"loss": 1.0}).result() == manager.latest().name
            break
        job.manager.step(job.state)
        job.manager.save(job.state).result()
    assert job.committed()[-1] == 2


@pytest.mark.parametrize("saved", ["at once", "after step"])
def test_batch_is_saved_while_an_error_is_handled_if_the_loop_said_that_it_is_done(job, saved):
    """More may belong to a batch than the update that the optimizer counts, such as an average of the weights."""
    for at, batch in enumerate(job.batches):
        job.call(*batch)
        if at == 3:
            if saved == "after step":
                job.manager.step(job.state)
            try:
                raise FloatingPointError("the loss is not finite")
            except FloatingPointError:
                if saved == "after step":
                    job.manager.save_final(job.state)
                else:
                    refuses(job)
            break
        job.manager.step(job.state)
    assert job.committed() == ([4] if saved == "after step" else [])


def test_evaluation_that_failed_says_nothing_of_the_training(job):
    for batch in job.batches:
        job.call(*batch)
        job.manager.step(job.state)
        try:
            job.network(ms.Tensor(np.ones((2, 5), np.float32)), batch[1])
        except (ValueError, RuntimeError):
            job.manager.save_final(job.state)
            break
    assert job.committed() == [1]


def test_loop_within_a_handler_is_saved(job):
    """A script that starts again in ``except``: that error is older than the batches."""
    job.optimizer.error = RuntimeError("a device was lost")
    try:
        job.call(*DATA[0])
    except RuntimeError:
        for batch in job.batches:
            job.call(*batch)
            job.manager.step(job.state)
            if job.state.progress().batches_delivered == 2:
                job.manager.save(job.state).result()
        job.manager.save_final(job.state)
    assert job.committed() == [2, 8]


def test_call_that_is_tried_again_is_saved(job):
    """The loop knows that the batch is trained, and says so by `step`, outside of ``except``."""
    for batch in job.batches:
        job.optimizer.error = RuntimeError("out of memory")
        with contextlib.suppress(RuntimeError):
            job.call(*batch)
        job.manager.step(job.state)
        break
    job.manager.save_final(job.state)
    assert job.committed() == [1]


def test_updates_that_are_skipped_are_no_reason_for_doubt(tmp_path):
    """As at an overflow: `step` says that the batch was trained, whatever the optimizers count."""
    job = Job(tmp_path)
    for at, batch in enumerate(job.batches):
        if at != 3:
            job.call(*batch)
        job.manager.step(job.state)
        if at == 3:
            job.manager.save(job.state).result()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        job.manager.save_final(job.state)
    assert job.committed() == [4, 8]
    job.manager.close()


def test_loop_that_counts_after_the_call_is_refused_in_the_next_one(tmp_path):
    begin_process(mode="pynative")
    network = nn.WithLossCell(nn.Dense(3, 3), nn.MSELoss())
    optimizer = Stops(network.trainable_params(), 0.1, 0.9)
    cell = nn.TrainOneStepCell(network, optimizer).set_train()
    with ck.CheckpointManager(tmp_path, save=ck.SaveEvery(micro_steps=1000)) as manager:
        state = ck.StateManager(cell)
        manager.restore(state)
        for batch in DATA[:3]:
            cell(*batch)
            state.count_delivered()
            manager.step(state)
        optimizer.error = KeyboardInterrupt()
        try:
            cell(*DATA[3])
        except KeyboardInterrupt:
            with pytest.raises(ResumeError, match="KeyboardInterrupt is being handled"):
                manager.save_final(state)
        assert manager.checkpoints() == []


def test_updates_that_nobody_counts_are_told_by_step(tmp_path):
    """The loop assigns the weights; while an error is handled, only `step` says that it did."""
    begin_process(mode="pynative")
    network = nn.Dense(3, 3)
    batches = ck.data.resumable(DATA, epochs=1)
    with ck.CheckpointManager(tmp_path, save=ck.SaveEvery(micro_steps=1000)) as manager:
        state = ck.StateManager(network, batches)
        manager.restore(state)
        for batch in batches:
            ops.assign(network.weight, network.weight - network(batch[0]).mean())
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                with pytest.raises(ResumeError, match=UNPROVEN):
                    manager.save(state)
            manager.step(state)
        assert manager.checkpoints() == []
