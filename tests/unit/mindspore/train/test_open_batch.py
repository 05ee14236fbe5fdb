"""What belongs to a batch beside its train cell is in no checkpoint by half, whatever interrupts the loop."""

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
        self.cell = KINDS[kind](self.network, adam(self.network.trainable_params())).set_train()
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
        self.manager.wait()

    def train_all(self, between=lambda number: None):
        for number, batch in enumerate(self.batches):
            self.train(*batch, functools.partial(between, number))
            self.step()
        return self

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
    """Also where the loop did not say of each earlier batch that it was done; after the step it is saved."""
    for kind, at, unsaid in (("own", 0, None), ("stock", 5, None), ("own", 4, 3)):
        job = begun(kind)
        interrupted(job, at, "between", job.refuses, unsaid)
        assert job.committed() == [], kind
        job = begun(kind)
        interrupted(job, at, "after step", functools.partial(job.manager.save_final, job.state))
        assert job.committed() == [at + 1], kind


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
        function = lambda *given: self.method(*given)  # noqa: E731, PLW0108 - a function, and no method
        return [self, self.method, functools.partial(Handlers.__call__, self), function]


def test_handler_of_a_signal_saves_no_batch_by_half(begun, tmp_path, handled):
    job = begun(root=tmp_path)
    handlers = Handlers(job)
    for number, (form, batch) in enumerate(zip(handlers.in_each_form(), job.batches, strict=False), start=1):
        handled(form)
        job.train(*batch, signalled)
        job.step()
        assert UNDONE in handlers.refused.pop(), form
        signalled()
        assert (handlers.refused, job.committed()[-1]) == ([], number), form
    seen = job.bits()
    job.manager.close()
    restarted = begun(root=tmp_path)
    assert (restarted.point.batches_delivered, restarted.bits()) == (4, seen)


def test_handler_saves_nothing_of_a_loop_that_counts_its_batches_itself(begun, handled):
    job = begun("stock", resumable=False)
    handlers = Handlers(job)
    handled(handlers)
    for batch in ROWS[:4]:
        signalled()
        assert "a signal is being handled after" in handlers.refused.pop()
        job.train(*batch)
        job.step()
    handlers(signal.SIGUSR2, None)  # called by the loop itself
    assert job.committed() == [4]


def test_step_in_a_handler_does_not_make_the_batch_done(begun, handled):
    job, refused = begun(), []

    def on_signal(number, frame):
        job.step()
        job.refuses()
        refused.append(number)

    handled(on_signal)
    job.train_all(lambda number: signalled() if number == 3 else None)
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
                job.manager.step(job.state)
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

        with pytest.raises(KeyboardInterrupt):
            loop()
        assert job.committed()[-1] == 5, resumable


def test_training_in_an_except_block_is_saved(begun, handled):
    """As after the loss of a device; within a handler of a signal; where the end of the data is an exception."""
    every = {"save": ck.SaveEvery(micro_steps=2)}
    for kind, resumable in (("own", True), ("stock", False)):
        try:
            raise ValueError
        except ValueError:
            job = begun(kind, resumable=resumable, **every)
            assert job.manager.save(job.state).result() == job.manager.latest().name
            assert job.train_all().committed()[-2:] == [6, 8], resumable
    jobs = []
    handled(lambda number, frame: jobs.append(begun(**every).train_all()))
    signalled()
    assert jobs[0].committed()[-2:] == [6, 8]
    job = begun(resumable=False)
    batches = iter(job.batches)
    try:
        while True:
            job.train(*next(batches))
            job.step()
    except StopIteration:
        job.manager.save_final(job.state)
    assert job.committed() == [8]
