"""What belongs to a batch beside its train cell is in no checkpoint by half, whatever interrupts the loop."""

from __future__ import annotations

import contextlib
import functools
import itertools
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

ROWS = [(ms.Tensor(np.full((2, 3), item, np.float32)), ms.Tensor(np.zeros((2, 3), np.float32))) for item in range(1, 9)]
UNDONE = "nothing shows that the last one was trained"
KINDS = {"own": functools.partial(ck.AccumulationTrainCell, accumulation_steps=2), "stock": nn.TrainOneStepCell}


class Job:
    """A loop that averages its weights after each update, and counts in an object of its own."""

    def __init__(self, storage, kind="own", *, resumable=True, **options):
        begin_process(mode="pynative")
        self.network = nn.WithLossCell(nn.Dense(3, 3), nn.MSELoss())
        self.average = nn.Dense(3, 3)
        self.average.update_parameters_name("average.")
        optimizer = adam(self.network.trainable_params())
        self.cell = KINDS[kind](self.network, optimizer).set_train()
        self.batches = ck.data.resumable(ROWS, epochs=1) if resumable else ROWS
        self.is_resumable = resumable
        self.kept = types.SimpleNamespace(seen=0)
        named = {"average": self.average, "kept": ck.attributes(self.kept, "seen")}
        self.state = ck.StateManager(self.cell, self.batches if resumable else None, **named)
        options = {"save": ck.SaveEvery(micro_steps=1000), "saving": ck.Saving(when_busy="wait"), **options}
        self.manager = ck.CheckpointManager(storage, **options)
        self.point = self.manager.restore(self.state)

    def train(self, x, y, between=lambda: None):
        self.cell(x, y)
        between()
        for mean, weight in zip(self.average.get_parameters(), self.network.get_parameters(), strict=True):
            ops.assign(mean, mean * 0.5 + weight * 0.5)
        self.kept.seen += 1

    def step(self):
        if not self.is_resumable:
            self.state.count_delivered()
        self.manager.step(self.state)

    def committed(self):
        return [info.progress.batches_delivered for info in self.manager.checkpoints()]

    def refuses(self, message=UNDONE):
        for save in (self.manager.save_final, self.manager.save, self.manager.save_final):  # asking again does not help
            with pytest.raises(ResumeError, match=message):
                save(self.state)

    def bits(self):
        gathered = {**self.network.parameters_dict(), **self.average.parameters_dict()}
        return {name: item.asnumpy().tobytes() for name, item in gathered.items()}, self.kept.seen


@pytest.fixture
def begun(tmp_path):
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:

        def begin(*given, root=None, **options):
            job = Job(root or tmp_path / f"run-{next(numbers)}", *given, **options)
            stack.callback(job.manager.close)
            return job

        yield begin


@pytest.fixture
def handled():
    before = signal.getsignal(signal.SIGUSR2)
    yield lambda handler: signal.signal(signal.SIGUSR2, handler)
    signal.signal(signal.SIGUSR2, before)


def interrupt_if(it_does):
    if it_does:
        raise KeyboardInterrupt


def signalled():
    signal.raise_signal(signal.SIGUSR2)


def interrupted(job, at, place, then, unsaid=None):
    def loop():
        try:
            for number, batch in enumerate(job.batches):
                here = place if number == at else ""
                interrupt_if(here == "before the cell")
                job.train(*batch, functools.partial(interrupt_if, here == "between"))
                interrupt_if(here == "after all")
                if number != unsaid:
                    job.step()
                interrupt_if(here == "after step")
        finally:
            then()

    with pytest.raises(KeyboardInterrupt):
        loop()


def test_interruption_between_update_and_average_is_not_saved(begun):
    """Also where the loop did not say of each earlier batch that it was done."""
    for kind, at, unsaid in (("own", 0, None), ("stock", 5, None), ("own", 4, 3)):
        job = begun(kind)
        interrupted(job, at, "between", job.refuses, unsaid)
        assert job.committed() == [], kind


def test_interruption_after_step_is_saved(begun, tmp_path):
    for kind in KINDS:
        job = begun(kind, root=tmp_path / kind)
        interrupted(job, 4, "after step", lambda job=job: job.manager.save_final(job.state))
        assert job.committed() == [5], kind
        seen = job.bits()
        job.manager.close()
        restarted = begun(kind, root=tmp_path / kind)
        assert (restarted.point.batches_delivered, restarted.bits()) == (5, seen), kind


def test_loop_that_counts_its_batches_itself_is_not_saved(begun):
    """Nobody sees where its next batch begins, so that a save is refused even where it would be right."""
    unseen = "nothing shows whether another one has begun|the train cell was called 6 times, but 5 batches"
    for kind, place in zip([*KINDS] * 2, ("before the cell", "between", "after all", "after step"), strict=True):
        job = begun(kind, resumable=False)
        interrupted(job, 5, place, functools.partial(job.refuses, unseen))
        assert job.committed() == [], place
    job.manager.save_final(job.state)  # the error is over, and the loop saves of its own accord
    assert job.committed() == [6]


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

    def in_each_form(self):
        return {
            "object": self,
            "method": self.method,
            "partial": functools.partial(Handlers.__call__, self),
            "function": lambda *given: self.method(*given),  # noqa: PLW0108 - a function, and no method
        }


def test_handler_of_a_signal_saves_no_batch_by_half(begun, tmp_path, handled):
    job = begun(root=tmp_path)
    handlers = Handlers(job)
    forms = handlers.in_each_form()
    for number, ((form, handler), batch) in enumerate(zip(forms.items(), job.batches, strict=False), start=1):
        handled(handler)
        job.train(*batch, signalled)
        job.step()
        assert UNDONE in handlers.refused.pop(), form
        signalled()
        assert handlers.refused == []
        assert job.committed()[-1] == number, form
    seen = job.bits()
    job.manager.close()
    restarted = begun(root=tmp_path)
    assert (restarted.point.batches_delivered, restarted.bits()) == (4, seen)


def test_handler_saves_nothing_of_a_loop_that_counts_its_batches_itself(begun, handled):
    job = begun("stock", resumable=False)
    handlers = Handlers(job)
    forms = handlers.in_each_form()
    for batch, (form, handler) in zip(ROWS, forms.items(), strict=False):
        handled(handler)
        signalled()
        assert "a signal is being handled after" in handlers.refused.pop(), form
        job.train(*batch)
        job.step()
    handlers(signal.SIGUSR2, None)  # called by the loop itself
    assert job.committed() == [4]


def test_step_in_a_handler_does_not_make_the_batch_done(begun, handled):
    job, refused = begun(), []

    def on_signal(number, frame):
        signal.signal(number, signal.SIG_IGN)
        job.step()
        job.refuses()
        refused.append(number)

    handled(on_signal)
    for number, batch in enumerate(job.batches):
        job.train(*batch, signalled if number == 3 else lambda: None)
        job.step()
    assert len(refused) == 1
    assert job.committed() == []


def test_failed_save_says_nothing_against_the_batch_of_its_step(begun, tmp_path):
    """`step` raises what an earlier save met; the batch before it is done, and the final save has it."""
    storage = FaultyStorage(LocalStorage(tmp_path))
    job = begun(root=storage, save=ck.SaveEvery(micro_steps=3), saving=ck.Saving(on_error="raise"))
    fault = storage.inject(Fault("error", operations=("write",), key="checkpoints/*"))

    def loop():
        try:
            for batch in job.batches:
                job.train(*batch)
                job.step()
                job.manager._run.results.drain()  # leaves a failure to the next call
        finally:
            job.manager.save_final(job.state)

    with pytest.raises(SaveFailedError):
        loop()
    assert fault.fired == 1
    assert job.committed() == [4]


def test_save_before_the_step_of_its_batch_is_refused_wherever_it_comes_from(begun):
    for kind in KINDS:
        job = begun(kind)
        for batch in job.batches:
            job.train(*batch, job.refuses)
            job.refuses()
            job.step()
        job.manager.save_final(job.state)
        assert job.committed() == [8], kind


def test_batch_ends_as_the_loop_asks_for_the_next_one(begun):
    for kind in KINDS:
        job = begun(kind)
        for number, batch in enumerate(job.batches):
            if number == 3:
                break
            job.train(*batch)
        job.refuses("the train cell was called 3 times" if kind == "own" else UNDONE)
        job = begun(kind)
        for batch in job.batches:
            job.train(*batch)
        job.manager.save_final(job.state)
        assert job.committed() == [8], kind


def test_step_while_an_error_is_handled_makes_no_batch_done(begun):
    for resumable in (True, False):
        job = begun("stock", resumable=resumable, save=ck.SaveEvery(micro_steps=1))

        def loop(job=job):
            for number, batch in enumerate(job.batches):
                try:
                    job.train(*batch, functools.partial(interrupt_if, number == 5))
                finally:
                    job.step()
                    job.manager.wait()

        with pytest.raises(KeyboardInterrupt):
            loop()
        assert job.committed()[-1] == 5, resumable


def test_training_in_an_except_block_is_saved(begun):
    for kind, resumable in (("own", True), ("stock", False)):
        job = begun(kind, resumable=resumable, save=ck.SaveEvery(micro_steps=2))
        try:
            raise ValueError
        except ValueError:
            for batch in job.batches:
                job.train(*batch)
                job.step()
                job.manager.wait()
        assert job.committed()[-2:] == [6, 8], resumable


def test_training_within_a_handler_of_a_signal_is_saved(begun, handled):
    jobs = []

    def main(number, frame):
        jobs.append(begun(save=ck.SaveEvery(micro_steps=1)))
        for batch in jobs[0].batches:
            jobs[0].train(*batch)
            jobs[0].step()
            jobs[0].manager.wait()

    handled(main)
    signalled()
    assert jobs[0].committed()[-2:] == [7, 8]


def test_end_of_the_data_is_no_error(begun):
    job = begun(resumable=False)
    batches = iter(job.batches)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            job.manager.save_final(job.state)
            break
        job.train(*batch)
        job.step()
    assert job.committed() == [8]


def test_restore_in_an_except_block_can_be_saved_there(begun, tmp_path):
    for resumable in (True, False):
        begun(root=tmp_path / str(resumable), resumable=resumable).manager.close()
        try:
            raise RuntimeError("a device was lost")
        except RuntimeError:
            job = begun(root=tmp_path / str(resumable), resumable=resumable)
            assert job.manager.save(job.state).result() == job.manager.latest().name
