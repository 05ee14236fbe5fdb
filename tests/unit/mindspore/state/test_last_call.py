"""What a foreign train cell leaves when its call does not return is not saved as the state after that batch."""

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

DOUBT = "an optimizer has not counted an update for the last one"
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


def refuses(job, message="was raised in a call of"):
    for _ in range(2):  # asking again does not help
        with pytest.raises(ResumeError, match=message):
            job.manager.save_final(job.state)
        with pytest.raises(ResumeError, match=message):
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


def test_error_that_another_one_followed_is_seen(job):
    batch = next(iter(job.batches))
    job.optimizer.error = KeyboardInterrupt()
    try:
        try:
            job.call(*batch)
        finally:
            raise ValueError("in the cleaning up")
    except ValueError:
        refuses(job)


def test_call_in_with_block_is_not_saved(job):
    batch = next(iter(job.batches))
    job.optimizer.error = KeyboardInterrupt()

    class SavesAtTheEnd:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            refuses(job)

    with pytest.raises(KeyboardInterrupt), SavesAtTheEnd():
        job.call(*batch)


def test_batch_that_no_call_got_is_not_saved(job):
    """Ctrl-C came between the loop's head and the call."""
    for at, batch in enumerate(job.batches):
        if at == 3:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                refuses(job, UNPROVEN)
            break
        job.call(*batch)
        job.manager.step(job.state)
    assert job.committed() == []


def test_first_batch_that_no_call_got_is_not_saved(job):
    """Nothing was seen of the optimizer yet."""
    for _ in job.batches:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            refuses(job, UNPROVEN)
        break
    assert job.committed() == []


@pytest.mark.parametrize("how", ["save", "save_final"])
def test_save_inside_of_a_call_is_refused(job, how):
    """As by a signal handler, or a hook of a cell."""
    tried = []

    def save():
        with pytest.raises(ResumeError, match="inside of a call of"):
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


class Group(Exception):  # noqa: N818 - as ExceptionGroup, which Python 3.10 has not
    def __init__(self, *exceptions):
        super().__init__("several")
        self.exceptions = exceptions


@pytest.mark.parametrize("how", ["cause", "group"])
def test_error_that_is_raised_again_in_another_one_is_seen(job, how):
    """As libraries that retry, and task groups, do."""
    batch = next(iter(job.batches))
    job.optimizer.error = KeyboardInterrupt()
    caught = None
    try:
        job.call(*batch)
    except KeyboardInterrupt as error:
        caught = error
    try:
        if how == "group":
            raise Group(ValueError(), caught)
        raise ValueError("tried three times") from caught
    except (Group, ValueError):
        refuses(job)


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


@pytest.mark.parametrize("at", range(3, 8))
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
                refuses(job, UNPROVEN)
            job.manager.step(job.state)
            try:
                raise FloatingPointError
            except FloatingPointError:
                job.manager.save_final(job.state)
            break
        job.manager.step(job.state)
    assert job.committed() == [at + 1]
    job.manager.close()


@pytest.mark.parametrize("skipped", [1, 4])
@pytest.mark.parametrize("saved_each", [False, True])
def test_batch_after_a_skipped_one_is_not_saved(tmp_path, skipped, saved_each):
    """One batch has no update, as at an overflow of a loss scale; an error comes between gradients and update."""
    job = Job(tmp_path, functional=True)
    differentiated = ms.value_and_grad(job.network, None, job.optimizer.parameters)
    for number, batch in enumerate(job.batches):
        gradients = differentiated(*batch)[1]
        if number == 5:
            try:
                raise MemoryError
            except MemoryError:
                refuses(job, UNPROVEN)
            break
        if number != skipped:
            job.optimizer(gradients)
        job.manager.step(job.state)
        if saved_each:
            job.manager.save(job.state).result()
    assert job.committed()[-1:] == ([5] if saved_each else [])
    job.manager.close()


@pytest.mark.parametrize("at", range(1, 8))
def test_micro_batch_whose_forward_failed_is_not_saved(tmp_path, at):
    """Gradients are added by hand, and every third batch updates."""
    job = Job(tmp_path, functional=True)
    differentiated = ms.value_and_grad(job.network, None, job.optimizer.parameters)
    total = None
    for number, batch in enumerate(job.batches):
        gradients = differentiated(*batch)[1]
        if number == at:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                refuses(job, UNPROVEN)
            break
        total = gradients if total is None else [one + other for one, other in zip(total, gradients, strict=True)]
        if number % 3 == 2:
            job.optimizer(tuple(total))
            total = None
        job.manager.step(job.state)
    assert job.committed() == []
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


@pytest.mark.parametrize("says", [True, False], ids=["calls step", "only saves"])
def test_evaluation_that_failed_before_step(job, says):
    """A loop that says of each batch when it is done has not said it; one that never does is believed."""
    for at, batch in enumerate(job.batches):
        job.call(*batch)
        if at == 3:
            try:
                job.network(ms.Tensor(np.ones((2, 5), np.float32)), batch[1])
            except (ValueError, RuntimeError):
                if says:
                    refuses(job, "was raised in a call of|" + UNPROVEN)
                else:
                    job.manager.save_final(job.state)
            break
        if says:
            job.manager.step(job.state)
    assert job.committed() == ([] if says else [4])


def test_what_belongs_to_a_batch_after_its_update_is_not_cut_off(tmp_path):
    """An average of the weights is one batch behind when the error comes."""
    job = Job(tmp_path, functional=True)
    for at, batch in enumerate(job.batches):
        job.call(*batch)
        if at == 3:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                refuses(job, UNPROVEN)
            break
        job.manager.step(job.state)
    assert job.committed() == []
    job.manager.close()


class EveryCall:
    """Says that each call is an update, and so nothing of whether the last one was made."""

    accumulation_steps, micro_step = 1, 0


def test_adapter_of_one_batch_per_update_does_not_tell_which_batches_were_trained(tmp_path):
    job = Job(tmp_path)
    job.manager.close()
    batches = ck.data.resumable(DATA, epochs=1)
    state = ck.StateManager(job.call, batches, training=ck.Training(cycle=EveryCall()))
    with ck.CheckpointManager(tmp_path / "own", save=ck.SaveEvery(micro_steps=1000)) as manager:
        manager.restore(state)
        for at, batch in enumerate(batches):
            if at == 3:
                try:
                    raise KeyboardInterrupt
                except KeyboardInterrupt:
                    with pytest.raises(ResumeError, match=UNPROVEN):
                        manager.save_final(state)
                break
            job.call(*batch)
            manager.step(state)
        assert manager.checkpoints() == []


def test_batch_that_no_call_got_is_doubted_later(job, caplog):
    for at, batch in enumerate(job.batches):
        if at == 3:
            break
        job.call(*batch)
        job.manager.step(job.state)
    job.manager.save_final(job.state)
    assert [
        line for line in caplog.text.splitlines() if f"4 batches of resumable() were delivered, but {DOUBT}" in line
    ]
    assert job.committed() == [4]


def test_batch_that_no_call_got_is_refused_by_strict(tmp_path):
    begin_process(mode="pynative")
    network = nn.WithLossCell(nn.Dense(3, 3), nn.MSELoss())
    cell = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9)).set_train()
    batches = ck.data.resumable(DATA, epochs=1)
    state = ck.StateManager(cell, batches, strict=True)
    with ck.CheckpointManager(tmp_path, save=ck.SaveEvery(micro_steps=1000)) as manager:
        manager.restore(state)
        for batch in batches:
            if state.progress().batches_delivered == 4:
                break
            cell(*batch)
            manager.step(state)
        with pytest.raises(ResumeError, match=DOUBT):
            manager.save_final(state)
        assert manager.checkpoints() == []


@pytest.mark.parametrize("saved", ["at once", "after step"])
def test_batch_is_saved_while_an_error_is_handled_if_the_loop_said_that_it_is_done(job, saved, caplog):
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
                    refuses(job, UNPROVEN)
            break
        job.manager.step(job.state)
    assert job.committed() == ([4] if saved == "after step" else [])
    assert DOUBT not in caplog.text


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


def test_updates_that_are_skipped_are_no_reason_for_doubt(tmp_path, caplog):
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
    assert (job.committed(), DOUBT in caplog.text) == ([4, 8], False)
    job.manager.close()


def test_loop_that_saves_without_step_is_believed_unless_an_error_is_handled(tmp_path, caplog):
    """A save of its own accord says that all is done, as `step` does."""
    job = Job(tmp_path)
    for at, batch in enumerate(job.batches):
        if at not in (3, 7):
            job.call(*batch)
        if at == 3:
            job.manager.save(job.state).result()
            assert DOUBT not in caplog.text
        elif at == 7:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                refuses(job, UNPROVEN)
    assert job.committed() == [4]
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
            with pytest.raises(ResumeError, match="was raised in a call of TrainOneStepCell"):
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
