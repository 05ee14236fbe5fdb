"""What belongs to a batch beside its train cell is in no checkpoint by half, whatever interrupts the loop."""

from __future__ import annotations

import functools
import signal
import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from support.training import adam, begin_process

import ckptkit as ck
from ckptkit.errors import ResumeError, SaveFailedError
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage

ROWS = [(ms.Tensor(np.full((2, 3), one, np.float32)), ms.Tensor(np.zeros((2, 3), np.float32))) for one in range(1, 9)]
UNDONE = "nothing shows that the last one was trained"


class Job:
    """A loop that averages its weights after each update, and counts in an object of its own."""

    def __init__(self, storage, kind="own", *, resumable=True, **options):
        begin_process(mode="pynative")
        self.network = nn.WithLossCell(nn.Dense(3, 3), nn.MSELoss())
        self.average = nn.Dense(3, 3)
        self.average.update_parameters_name("average.")
        optimizer = adam(self.network.trainable_params())
        if kind == "own":
            self.cell = ck.AccumulationTrainCell(self.network, optimizer, 2).set_train()
        else:
            self.cell = nn.TrainOneStepCell(self.network, optimizer).set_train()
        self.batches = ck.data.resumable(ROWS, epochs=1) if resumable else None
        self.kept = types.SimpleNamespace(seen=0)
        named = {"average": self.average, "kept": ck.attributes(self.kept, "seen")}
        self.state = ck.StateManager(self.cell, self.batches, **named)
        options = {"save": ck.SaveEvery(micro_steps=1000), "saving": ck.Saving(when_busy="wait"), **options}
        self.manager = ck.CheckpointManager(storage, **options)
        self.point = self.manager.restore(self.state)

    def train(self, x, y, between=lambda: None):
        self.cell(x, y)
        between()
        for mean, one in zip(self.average.get_parameters(), self.network.get_parameters(), strict=True):
            ops.assign(mean, mean * 0.5 + one * 0.5)
        self.kept.seen += 1

    def committed(self):
        return [one.progress.batches_delivered for one in self.manager.checkpoints()]

    def refuses(self, message):
        for save in (self.manager.save_final, self.manager.save, self.manager.save_final):  # asking again does not help
            with pytest.raises(ResumeError, match=message):
                save(self.state)

    def bits(self):
        found = {**self.network.parameters_dict(), **self.average.parameters_dict()}
        return {name: one.asnumpy().tobytes() for name, one in found.items()}, self.kept.seen


def interrupt():
    raise KeyboardInterrupt


def interrupt_if(it_does):
    if it_does:
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["own", "stock"])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_interruption_between_update_and_average_is_not_saved(tmp_path, kind, at):
    job = Job(tmp_path, kind)

    def loop():
        try:
            for number, batch in enumerate(job.batches):
                job.train(*batch, interrupt if number == at else lambda: None)
                job.manager.step(job.state)
        finally:
            job.refuses(UNDONE)

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert job.committed() == []
    job.manager.close()


@pytest.mark.parametrize("kind", ["own", "stock"])
def test_interruption_after_step_is_saved(tmp_path, kind):
    job = Job(tmp_path, kind)

    def loop():
        try:
            for number, batch in enumerate(job.batches):
                job.train(*batch)
                job.manager.step(job.state)
                if number == 4:
                    raise KeyboardInterrupt
        finally:
            job.manager.save_final(job.state)

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert job.committed() == [5]
    seen = job.bits()
    job.manager.close()
    again = Job(tmp_path, kind)
    assert (again.point.batches_delivered, again.bits()) == (5, seen)
    again.manager.close()


@pytest.mark.parametrize("kind", ["own", "stock"])
def test_batch_without_step_before_does_not_make_the_next_one_done(tmp_path, kind):
    job = Job(tmp_path, kind)

    def loop():
        try:
            for number, batch in enumerate(job.batches):
                job.train(*batch, interrupt if number == 4 else lambda: None)
                if number != 3:
                    job.manager.step(job.state)
        finally:
            job.refuses(UNDONE)

    with pytest.raises(KeyboardInterrupt):
        loop()
    job.manager.close()


@pytest.mark.parametrize("kind", ["own", "stock"])
@pytest.mark.parametrize("place", ["before the cell", "between", "after all", "after step"])
def test_loop_that_counts_its_batches_itself_is_not_saved(tmp_path, kind, place):
    """Nobody sees where its next batch begins, so that a save is refused even where it would be right."""
    job = Job(tmp_path, kind, resumable=False)

    def loop():
        try:
            for number, batch in enumerate(ROWS):
                at = place if number == 5 else ""
                interrupt_if(at == "before the cell")
                job.train(*batch, functools.partial(interrupt_if, at == "between"))
                interrupt_if(at == "after all")
                job.state.count_delivered()
                job.manager.step(job.state)
                interrupt_if(at == "after step")
        finally:
            job.refuses("nothing shows whether another one has begun|the train cell was called 6 times, but 5 batches")

    with pytest.raises(KeyboardInterrupt):
        loop()
    if place == "after step":
        job.manager.save_final(job.state)  # the error is over, and the loop saves of its own accord
        assert job.committed() == [6]
    job.manager.close()


class Handlers:
    """A handler in each form that Python accepts; it saves."""

    def __init__(self, job):
        self.job = job
        self.refused = []

    def __call__(self, number, frame):
        try:
            self.job.manager.save(self.job.state).result()
        except ResumeError as error:
            self.refused.append(str(error))

    def method(self, number, frame):
        self(number, frame)


@pytest.fixture
def handled():
    before = signal.getsignal(signal.SIGUSR2)
    yield lambda handler: signal.signal(signal.SIGUSR2, handler)
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("kind", ["own", "stock"])
@pytest.mark.parametrize("form", ["object", "method", "partial", "function"])
def test_handler_of_a_signal_saves_no_batch_by_half(tmp_path, kind, form, handled):
    """The right save of that batch follows: it is not taken for the one that was refused."""
    job = Job(tmp_path, kind)
    handlers = Handlers(job)
    forms = {
        "object": handlers,
        "method": handlers.method,
        "partial": functools.partial(Handlers.__call__, handlers),
        "function": lambda *given: handlers.method(*given),  # noqa: PLW0108 - a function, and no method
    }
    handled(forms[form])
    for number, batch in enumerate(job.batches):
        job.train(*batch, (lambda: signal.raise_signal(signal.SIGUSR2)) if number == 3 else lambda: None)
        job.manager.step(job.state)
        if number == 3:
            assert len(handlers.refused) == 1
            assert UNDONE in handlers.refused[0]
            signal.raise_signal(signal.SIGUSR2)
            break
    assert len(handlers.refused) == 1
    assert job.committed() == [4]
    seen = job.bits()
    job.manager.close()
    again = Job(tmp_path, kind)
    assert (again.point.batches_delivered, again.bits()) == (4, seen)
    again.manager.close()


def test_step_in_a_handler_of_a_signal_does_not_make_the_batch_done(tmp_path, handled):
    job = Job(tmp_path)
    refused = []

    def on_signal(number, frame):
        job.manager.step(job.state)
        try:
            job.manager.save(job.state)
        except ResumeError as error:
            refused.append(str(error))

    handled(on_signal)
    for number, batch in enumerate(job.batches):
        job.train(*batch, (lambda: signal.raise_signal(signal.SIGUSR2)) if number == 3 else lambda: None)
        job.manager.step(job.state)
    assert len(refused) == 1
    assert job.committed() == []
    job.manager.close()


def test_failed_save_says_nothing_against_the_batch_of_its_step(tmp_path):
    """`step` raises what an earlier save met; the batch before it is done, and the final save has it."""
    storage = FaultyStorage(LocalStorage(tmp_path))
    job = Job(storage, save=ck.SaveEvery(micro_steps=3), saving=ck.Saving(on_error="raise"))
    fault = storage.inject(Fault("error", operations=("write",), key="checkpoints/*"))

    def loop():
        try:
            for batch in job.batches:
                job.train(*batch)
                job.manager.step(job.state)
                drained(job)
        finally:
            job.manager.save_final(job.state)

    with pytest.raises(SaveFailedError):
        loop()
    assert fault.fired == 1
    assert job.committed() == [4]
    job.manager.close()


def drained(job):
    """Wait until no save is at work, and leave its failure to the next call."""
    job.manager._run.results.drain()


@pytest.mark.parametrize("kind", ["own", "stock"])
def test_save_before_the_step_of_its_batch_is_refused_wherever_it_comes_from(tmp_path, kind):
    """Nobody sees whether an event loop, an exit of the interpreter, another thread or the loop itself calls it."""
    job = Job(tmp_path, kind)
    for batch in job.batches:
        job.train(*batch, lambda: job.refuses(UNDONE))
        job.refuses(UNDONE)
        job.manager.step(job.state)
    job.manager.save_final(job.state)
    assert job.committed() == [8]
    job.manager.close()


@pytest.mark.parametrize("kind", ["own", "stock"])
def test_loop_without_step_is_saved_at_its_end(tmp_path, kind):
    """It has asked for a batch after the last one."""
    job = Job(tmp_path, kind)
    for batch in job.batches:
        job.train(*batch)
    job.manager.save_final(job.state)
    assert job.committed() == [8]
    job.manager.close()


@pytest.mark.parametrize("kind", ["own", "stock"])
def test_batch_that_a_break_left_is_not_saved(tmp_path, kind):
    job = Job(tmp_path, kind)
    for number, batch in enumerate(job.batches):
        if number == 3:
            break
        job.train(*batch)
        job.manager.step(job.state)
    job.refuses(UNDONE if kind == "stock" else "the train cell was called 3 times")
    job.manager.close()


@pytest.mark.parametrize("kind", ["own", "stock"])
def test_what_was_refused_once_is_refused_until_the_next_step(tmp_path, kind):
    job = Job(tmp_path, kind)
    for number, batch in enumerate(job.batches):
        try:
            job.train(*batch, interrupt if number == 3 else lambda: None)
        except KeyboardInterrupt:
            job.refuses(UNDONE)
        if number == 3:
            job.refuses(UNDONE)
        job.manager.step(job.state)
    job.manager.save_final(job.state)
    assert job.committed() == [8]
    job.manager.close()


@pytest.mark.parametrize("kind", ["own", "stock"])
def test_count_while_an_error_is_handled_makes_no_batch_done(tmp_path, kind):
    job = Job(tmp_path, kind, resumable=False, save=ck.SaveEvery(micro_steps=1))

    def loop():
        for number, batch in enumerate(ROWS):
            try:
                job.train(*batch, interrupt if number == 5 else lambda: None)
            finally:
                job.state.count_delivered()
                job.manager.step(job.state)
                job.manager.wait()

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert job.committed()[-1] == 5
    job.manager.close()


@pytest.mark.parametrize("kind", ["own", "stock"])
@pytest.mark.parametrize("resumable", [True, False])
def test_training_in_an_except_block_is_saved(tmp_path, kind, resumable):
    """Also one that was restored before: an error that outlasts a step belongs to no batch."""
    job = Job(tmp_path, kind, resumable=resumable, save=ck.SaveEvery(micro_steps=2))
    try:
        raise ValueError
    except ValueError:
        for batch in job.batches if resumable else ROWS:
            job.train(*batch)
            if not resumable:
                job.state.count_delivered()
            job.manager.step(job.state)
            job.manager.wait()
    assert job.committed()[-2:] == [6, 8]
    job.manager.close()


@pytest.mark.parametrize("kind", ["own", "stock"])
def test_step_in_an_except_block_puts_the_save_off_to_the_next_one(tmp_path, kind, caplog):
    """As where memory ran out, and the batch is trained in another way."""
    caplog.set_level("INFO", "ckptkit")
    saved = []
    saving = ck.Saving(when_busy="wait", on_save=lambda report: saved.append(report.progress.batches_delivered))
    job = Job(tmp_path, kind, save=ck.SaveEvery(micro_steps=1), saving=saving)
    for number, batch in enumerate(job.batches):
        try:
            if number == 3:
                raise MemoryError
            job.train(*batch)
        except MemoryError:
            job.train(*batch)
            job.manager.step(job.state)
        else:
            job.manager.step(job.state)
        job.manager.wait()
    assert (4 in saved, 5 in saved) == (False, True)
    assert caplog.text.count("the save waits for the next one") == 1
    job.manager.close()


@pytest.mark.parametrize("kind", ["own", "stock"])
@pytest.mark.parametrize("resumable", [True, False])
def test_end_of_the_data_is_no_error(tmp_path, kind, resumable):
    job = Job(tmp_path, kind, resumable=resumable)
    batches = iter(job.batches if resumable else ROWS)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            job.manager.save_final(job.state)
            break
        job.train(*batch)
        if not resumable:
            job.state.count_delivered()
        job.manager.step(job.state)
    assert job.committed() == [8]
    job.manager.close()


def test_training_within_a_handler_of_a_signal_is_saved(tmp_path, handled):
    job = []

    def main(number, frame):
        job.append(Job(tmp_path, save=ck.SaveEvery(micro_steps=1)))
        for batch in job[0].batches:
            job[0].train(*batch)
            job[0].manager.step(job[0].state)
            job[0].manager.wait()

    handled(main)
    signal.raise_signal(signal.SIGUSR2)
    assert job[0].committed()[-2:] == [7, 8]
    job[0].manager.close()


@pytest.mark.parametrize("kind", ["own", "stock"])
@pytest.mark.parametrize("form", ["object", "method", "partial", "function"])
def test_handler_saves_nothing_of_a_loop_that_counts_its_batches_itself(tmp_path, kind, form, handled):
    """Something of the next batch may have begun, and nobody sees that."""
    job = Job(tmp_path, kind, resumable=False)
    handlers = Handlers(job)
    forms = {
        "object": handlers,
        "method": handlers.method,
        "partial": functools.partial(Handlers.__call__, handlers),
        "function": lambda *given: handlers.method(*given),  # noqa: PLW0108 - a function, and no method
    }
    handled(forms[form])
    for batch in ROWS[:4]:
        job.kept.seen += 1
        signal.raise_signal(signal.SIGUSR2)
        job.train(*batch)
        job.state.count_delivered()
        job.manager.step(job.state)
    assert len(handlers.refused) == 4
    assert all("a signal is being handled after" in error for error in handlers.refused)
    handlers(signal.SIGUSR2, None)  # called by the loop itself
    assert job.committed() == [4]
    job.manager.close()


@pytest.mark.parametrize("kind", ["own", "stock"])
@pytest.mark.parametrize("resumable", [True, False])
def test_restore_in_an_except_block_can_be_saved_there(tmp_path, kind, resumable):
    """The script goes on in ``except``, with other objects."""
    job = Job(tmp_path, kind, resumable=resumable)
    try:
        raise RuntimeError("a device was lost")
    except RuntimeError:
        job.manager.close()
        again = Job(tmp_path, kind, resumable=resumable)
        assert again.manager.save(again.state).result() == again.manager.latest().name
        again.manager.close()


def test_handler_that_resets_its_signal_saves_no_batch_by_half(tmp_path, handled):
    job = Job(tmp_path)
    refused = []

    def on_signal(number, frame):
        signal.signal(number, signal.SIG_IGN)
        with pytest.raises(ResumeError, match=UNDONE) as error:
            job.manager.save(job.state)
        refused.append(error)

    handled(on_signal)
    for number, batch in enumerate(job.batches):
        job.train(*batch, (lambda: signal.raise_signal(signal.SIGUSR2)) if number == 3 else lambda: None)
        job.manager.step(job.state)
    assert len(refused) == 1
    job.manager.close()
