"""One's own loop over resumable batches: exact for every kind of data, once per start, refused where it cannot be."""

from __future__ import annotations

import functools
import queue
import threading

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.experimental import optim
from mindspore.train import Callback
from support.options import grouped
from support.own_loop import OwnLoop
from support.process import python
from support.training import (
    NOTES,
    SIZE,
    Job,
    accumulation_cell,
    begin_process,
    checkpoints,
    crashed,
    digest,
    pipeline,
    samples,
)

import ckptkit as ck
from ckptkit import data
from ckptkit.mindspore.data.batch_digest import digest_of
from ckptkit.mindspore.data.iterable import IterablePosition
from ckptkit.mindspore.data.replay import another_batch
from ckptkit.mindspore.rng import words_drawn_unseeded
from ckptkit.mindspore.train.counting import counting_of

EPOCHS = 3


class Loader:
    """Another order in every epoch, from a counter of its own."""

    def __init__(self, rows=12):
        self.rows = rows
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        order = np.random.default_rng(self.epoch).permutation(self.rows)
        for start in range(0, self.rows, 3):
            yield batch_of(order[start : start + 3])


class WithState:
    """Goes on with the rest of the epoch that it is in."""

    def __init__(self):
        self.state = {"epoch": 0, "batch": 0}
        self.iterations = 0

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state

    def __iter__(self):
        self.iterations += 1
        order = np.random.default_rng(self.state["epoch"]).permutation(12).reshape(4, 3)
        while self.state["batch"] < 4:
            self.state["batch"] += 1
            yield batch_of(order[self.state["batch"] - 1])
        self.state.update(epoch=self.state["epoch"] + 1, batch=0)


class Rowed(WithState):
    """Has its rows from elsewhere."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def __iter__(self):
        while self.state["batch"] < len(self.rows):
            self.state["batch"] += 1
            yield self.rows[self.state["batch"] - 1]


def batch_of(order):
    rng = np.random.default_rng(order[0])
    return rng.random((3, 6), np.float32), rng.random((3, 3), np.float32)


def plain_list():
    return [batch_of([first]) for first in range(5)]


class Itself(Loader):
    """Is its own iterator, and begins anew by itself."""

    def __iter__(self):
        self.batches = super().__iter__()
        return self

    def __next__(self):
        return next(self.batches)


class OnlyOnce(Itself):
    """Is its own iterator, and goes on."""

    def __iter__(self):
        return self


class HalfAState(list):
    """It could be told where to go on, but does not say where it is."""

    def load_state_dict(self, state):
        raise AssertionError


KINDS = {"pipeline": pipeline, "loader": Loader, "list": plain_list, "state": WithState, "itself": Itself}
CELLS = {"accumulating": accumulation_cell, "foreign": lambda: nn.TrainOneStepCell(*network_and_optimizer())}


def network_and_optimizer():
    cell = accumulation_cell()
    return cell.network, nn.Adam(cell.network.trainable_params(), 1e-2)


class Life(OwnLoop):
    """Notes the batches, too, and which epochs they are of."""

    def __init__(self, root, make, cell=accumulation_cell, epochs=EPOCHS, every=1000, **options):
        begin_process()
        batches = data.resumable(make(), epochs, **options)
        super().__init__(root, cell(), batches, save=ck.SaveEvery(micro_steps=every))
        self.epochs = []

    def look(self, batch):
        self.epochs.append(self.batches.epoch)
        # A fresh start draws no state from the disturbed generators, hence not theirs.
        return digest_of([batch, *(one.asnumpy() for one in self.cell.get_parameters())])


@pytest.mark.covering(1)
@pytest.mark.parametrize("cell", list(CELLS))
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("place", ["within", "epoch end", "later"])
def test_an_interrupted_loop_goes_on_exactly(tmp_path, kind, cell, place):
    def life(root, **options):
        return Life(tmp_path / root, KINDS[kind], CELLS[cell], **options)

    expected = life("whole").run()
    size = len(expected.steps) // EPOCHS
    assert expected.epochs == [epoch for epoch in range(EPOCHS) for _ in range(size)]
    at = {"within": 2, "epoch end": size, "later": 2 * size + 1}[place]
    life("cut", every=at).run(until=at)
    again = life("cut").run()
    assert again.steps == {step: one for step, one in expected.steps.items() if step > at}
    assert again.epochs == expected.epochs[at:]
    assert again.point.batches_delivered == at


class DrawingLoader(Loader):
    """Another order in every epoch, from the global generator."""

    def __iter__(self):
        order = np.random.permutation(self.rows)
        for start in range(0, self.rows, 3):
            yield batch_of(order[start : start + 3])


@pytest.mark.parametrize("at", [2, pytest.param(4, marks=pytest.mark.extended), 9])
def test_order_from_global_generator_goes_on_exactly(tmp_path, at):
    """From any epoch: a replay begins with the generators that the first one began with."""
    expected = Life(tmp_path / "whole", DrawingLoader).run().steps
    Life(tmp_path / "cut", DrawingLoader, every=at).run(until=at)
    again = Life(tmp_path / "cut", DrawingLoader).run()
    assert again.point.batches_delivered == at
    assert again.steps == {step: one for step, one in expected.items() if step > at}


@pytest.mark.parametrize("kind", [pytest.param(one, marks=[pytest.mark.extended] * (one == "state")) for one in KINDS])
def test_finished_loop_continues_with_more_epochs(tmp_path, kind):
    expected = Life(tmp_path / "whole", KINDS[kind]).run().steps
    short = Life(tmp_path / "grown", KINDS[kind], epochs=2).run().steps
    again = Life(tmp_path / "grown", KINDS[kind], epochs=2).run()
    assert again.steps == {}
    assert again.point.batches_delivered == len(short)
    more = Life(tmp_path / "grown", KINDS[kind], epochs=3).run().steps
    assert short | more == expected
    assert not short.keys() & more.keys()


def test_loop_refuses_checkpoint_with_other_callbacks(root):
    """A callback's checkpoint fits the same loop, except for the state of its other callbacks."""
    Job().started(checkpoints(root, stateful={}), 1)
    life = Life(root, pipeline, epochs=2)
    with pytest.raises(ck.StateMismatchError, match="callbacks"):
        life.run()  # its other callbacks' state has no place in a loop


def test_stateful_iterable_is_not_read_again(tmp_path):
    Life(tmp_path, WithState, every=6).run(until=6)
    life = Life(tmp_path, WithState)
    source = life.batches.position._iterable
    life.run()
    assert source.iterations == 2  # the rest of one epoch, and the last


def test_half_a_state_is_no_state():
    position = IterablePosition(HalfAState(plain_list()))
    position.prepare(0, None)
    next(position.batches(2))
    recorded = position.state(1)
    assert recorded["state"] is None
    again = IterablePosition(HalfAState(plain_list()))
    again.prepare(1, recorded)
    assert len(list(again.batches(2))) == 9


def test_iterable_state_is_taken_at_each_save():
    """What the loop did to the iterable since the delivery is in it, and in the state before the next batch."""
    source = WithState()
    position = IterablePosition(source)
    position.prepare(0, None)
    batches = position.batches(2)
    assert position.state(0)["state"] == {"epoch": 0, "batch": 0}
    next(batches)
    recorded = position.state(1)
    assert (recorded["before"], recorded["state"]) == ({"epoch": 0, "batch": 0}, {"epoch": 0, "batch": 1})
    source.state["batch"] = 2
    assert position.state(1)["state"] == {"epoch": 0, "batch": 2}
    next(batches)
    assert position.state(2)["before"] == {"epoch": 0, "batch": 2}
    assert recorded["state"] == {"epoch": 0, "batch": 1}, "it is a copy"


class Nested(WithState):
    """Its state is a list within a list, which it goes on changing; new in the next epoch."""

    def __init__(self):
        super().__init__()
        self.drawn = [[0]]

    def __iter__(self):
        for batch in super().__iter__():
            self.drawn[0].append(self.state["batch"])
            yield batch
        self.drawn[0].clear()

    def state_dict(self):
        return {**super().state_dict(), "drawn": self.drawn}

    def load_state_dict(self, state):
        super().load_state_dict({name: state[name] for name in ("epoch", "batch")})
        self.drawn = state["drawn"]


def test_state_at_the_end_of_epochs_is_copied():
    source = Nested()
    position = IterablePosition(source)
    position.prepare(0, None)
    batches = position.batches(2)
    for _ in range(5):
        next(batches)
    before = position.state(5)["before"]
    assert before == {"epoch": 1, "batch": 0, "drawn": [[]]}
    source.drawn[0].append(99)
    assert before["drawn"] == [[]]
    assert position.state(5)["state"]["drawn"] == [[1, 99]], "as it is at the save"


class Behind(WithState):
    """Counts a batch only when the next one is asked for."""

    def __iter__(self):
        order = np.random.default_rng(self.state["epoch"]).permutation(12).reshape(4, 3)
        while self.state["batch"] < 4:
            yield batch_of(order[self.state["batch"]])
            self.state["batch"] += 1
        self.state.update(epoch=self.state["epoch"] + 1, batch=0)


class Ahead(WithState):
    """Has read one batch more than it gave."""

    def __iter__(self):
        held = []
        for batch in super().__iter__():
            held.append(batch)
            if len(held) == 2:
                yield held.pop(0)
        yield from held


class Drawing(WithState):
    """Has its place in its state, and its noise from NumPy's global generator."""

    def __iter__(self):
        for x, y in super().__iter__():
            yield x + np.random.random(x.shape).astype(np.float32), y


def test_a_state_behind_its_batches_is_refused(tmp_path):
    """At its first batch, while nothing is lost."""
    life = Life(tmp_path, Behind, every=1)
    with pytest.raises(ck.ResumeError, match="same before and after the first batch of epoch 0"):
        life.run()
    assert life.steps == {}


class BehindLater(WithState):
    """Counts the first batch of an epoch in time, and every other one when the next one is asked for, or later."""

    lag = 0

    def __iter__(self):
        order = np.random.default_rng(self.state["epoch"]).permutation(12).reshape(4, 3)
        counted = self.state["batch"]
        for at in range(counted, 4):
            self.state["batch"] = max(1, at - self.lag)
            yield batch_of(order[at])
        self.state.update(epoch=self.state["epoch"] + 1, batch=0)


@pytest.mark.parametrize(("lag", "at"), [(0, 3), (1, 4)])
def test_a_state_that_falls_behind_is_refused(tmp_path, monkeypatch, lag, at):
    monkeypatch.setattr(BehindLater, "lag", lag)
    Life(tmp_path, BehindLater, every=at).run(until=at)
    life = Life(tmp_path, BehindLater)
    with pytest.raises(ck.ResumeError, match=f"the BehindLater was behind: from its state before batch {at - 1}"):
        life.run()
    assert life.steps == {}


@pytest.mark.parametrize("at", [4, *(pytest.param(at, marks=pytest.mark.extended) for at in (2, 6))])
def test_a_state_ahead_of_its_batches_is_named(tmp_path, at, shown):
    Life(tmp_path, Ahead, every=at).run(until=at)
    Life(tmp_path, Ahead).run()
    assert f"the Ahead gives a different batch {at - 1} than the one that was trained" in shown()


class OfGlobal(WithState):
    """Has no place but that of NumPy's global generator."""

    draw = staticmethod(np.random.random)

    def state_dict(self):
        return {}

    def __iter__(self):
        for _ in range(4):
            yield batch_of([int(100 * abs(self.draw()))])


@pytest.mark.parametrize("draw", [np.random.random, np.random.normal])
def test_place_in_global_generators_is_none_behind(monkeypatch, shown, draw):
    monkeypatch.setattr(OfGlobal, "draw", staticmethod(draw))
    np.random.normal()  # keeps back a second number, which is the next one
    position = IterablePosition(OfGlobal())
    position.prepare(0, None)
    assert len([*position.batches(2)]) == 8
    assert shown() == ""


class Buffered(WithState):
    """Has read all batches of an epoch before it gives one."""

    def __iter__(self):
        yield from list(super().__iter__())


@pytest.mark.parametrize(("kind", "named"), [(Buffered, True), (WithState, False), (Drawing, False), (Loader, False)])
def test_a_state_far_ahead_is_named_early(tmp_path, shown, kind, named):
    """At the end of the first epoch, before a resume could leave anything out."""
    Life(tmp_path, kind, epochs=2).run()
    told = f"state_dict() of the {kind.__name__} was the same before and after the last batch of epoch 0"
    assert shown().count(told) == named


class Learning(WithState):
    """Gives what training told it; what it was told is stored by name."""

    def __init__(self):
        super().__init__()
        self.told = 0.0

    def __iter__(self):
        for x, y in super().__iter__():
            yield x + self.told, y


class Told:
    def __init__(self, source):
        self.source = source

    def state_dict(self):
        return {"told": self.source.told}

    def load_state_dict(self, state):
        self.source.told = state["told"]


def learned(root, until=None):
    """Batches by number of a loop that tells its loader something after each."""
    begin_process()
    source, cells = Learning(), list(network_and_optimizer())
    batches = data.resumable(source, 2)
    seen = {}
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait")) as manager:
        state = ck.StateManager(cells, batches, training=ck.Training(ignore=NOTES), told=Told(source))
        point = manager.restore(state)
        for number, batch in enumerate(batches, point.batches_delivered + 1):
            seen[number] = digest_of(batch)
            source.told += float(number)
            manager.step(state)
            if number == until:
                break
    return seen


def test_loader_that_learns_goes_on_exactly(tmp_path, shown):
    expected = learned(tmp_path / "whole")
    learned(tmp_path / "run", until=3)
    assert learned(tmp_path / "run") == {number: one for number, one in expected.items() if number > 3}
    assert "the Learning gives a different batch 2 than the one that was trained" in shown()


class Weighing:
    """Draws the order of an epoch by weights that the loop tells it, and stores all of that.

    Args:
        restarts: Whether the next epoch begins in ``__iter__``; otherwise where the one before ends.
        at_once: Whether the weights decide the next batch, too.
    """

    def __init__(self, restarts, at_once):
        self.restarts, self.at_once = restarts, at_once
        self.epoch = self.place = 0
        self.weights = np.ones(12)
        self.order = self.drawn()

    def drawn(self):
        rng = np.random.default_rng([7, self.epoch])
        return rng.choice(12, 12, p=self.weights / self.weights.sum())

    def begin(self):
        self.epoch, self.place = self.epoch + 1, 0
        self.order = self.drawn()

    def __iter__(self):
        if self.restarts and self.place == 12:
            self.begin()
        while self.place < 12:
            self.place += 3
            x, y = batch_of(self.order[self.place - 3 : self.place])
            yield (x * np.float32(self.weights[0]) if self.at_once else x), y
        if not self.restarts:
            self.begin()

    def tell(self, losses):
        self.weights[self.order[self.place - 3 : self.place]] += 100 * losses

    def state_dict(self):
        return {name: getattr(self, name) for name in ("epoch", "place", "weights", "order")}

    def load_state_dict(self, state):
        vars(self).update(state)


class Sized(Weighing):
    def __len__(self):
        return 4


def weighed(root, make, until=None, *, late=False):
    """Batches and weights by number of a loop that tells its loader the loss of each batch."""
    begin_process()
    source, cells = make(), list(network_and_optimizer())
    batches = data.resumable(source, 3)
    seen = {}
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait")) as manager:
        state = ck.StateManager(cells, batches, training=ck.Training(ignore=NOTES))
        point = manager.restore(state)
        for number, batch in enumerate(batches, point.batches_delivered + 1):
            if late:
                manager.step(state)
            source.tell(float(np.abs(batch[0]).mean()))
            if not late:
                manager.step(state)
            seen[number] = digest_of([batch, source.weights])
            if number == until:
                break
    return seen


@pytest.mark.covering(1)
@pytest.mark.parametrize("at", [3, 4, 5, 8, 11])
@pytest.mark.parametrize(
    "make",
    [
        functools.partial(kind, restarts=restarts, at_once=at_once)
        for kind, restarts, at_once in [
            (Sized, True, False),
            (Sized, False, False),
            (Weighing, False, False),
            (Sized, True, True),
            (Sized, False, True),
            (Weighing, False, True),
        ]
    ],
    ids=["restarts", "ends", "without length", "restarts at once", "ends at once", "without length at once"],
)
def test_what_the_loop_told_its_loader_is_stored(tmp_path, shown, make, at):
    """Also what it told it after the batch that was saved, and after the last one of an epoch."""
    expected = weighed(tmp_path / "whole", make)
    assert len(expected) == 12
    weighed(tmp_path / "run", make, until=at)
    assert weighed(tmp_path / "run", make) == {number: one for number, one in expected.items() if number > at}
    assert "may not be bit-exact" not in shown()


class Views:
    """Rows whose noise is drawn from the loader's own generator, by the loader or when the loop asks for it."""

    def __init__(self, drawn_by):
        self.drawn_by = drawn_by
        self.rng = np.random.default_rng(1)

    def noise(self):
        return np.float32(self.rng.normal(0, 1))

    def __iter__(self):
        for order in np.arange(12).reshape(4, 3):
            x, y = batch_of(order)
            yield (x + self.noise(), y) if self.drawn_by == "loader" else (x, y)


@pytest.mark.parametrize("drawn_by", ["loader", "loop"])
def test_loop_that_draws_from_its_loader_is_named(tmp_path, shown, drawn_by):
    """A loader without a state is read again at a resume, and what the loop drew in between is not drawn again."""
    begin_process()
    source = Views(drawn_by)
    batches = data.resumable(source, 2)
    state = ck.StateManager(list(network_and_optimizer()), batches)
    with ck.CheckpointManager(tmp_path) as manager:
        manager.restore(state)
        for _ in batches:
            if drawn_by == "loop":
                source.noise()
            manager.step(state)
    assert shown().count("Views.rng   belongs to the data, but the steps change it") == (drawn_by == "loop")


class Timed(Sized):
    """Says something else at each call."""

    calls = 0

    def state_dict(self):
        self.calls += 1
        return {**super().state_dict(), "at": self.calls}

    def load_state_dict(self, state):
        super().load_state_dict({name: part for name, part in state.items() if name != "at"})


@pytest.mark.parametrize("kind", [Sized, Timed])
def test_what_the_loop_tells_its_loader_after_a_save_is_named(tmp_path, shown, kind):
    weighed(tmp_path, functools.partial(kind, True, False), late=True)
    words = f"state_dict() of the {kind.__name__} changed between the save after batch 0 and the next batch"
    assert shown().count(words) == 1
    assert shown().count("changed between the save") == 1


@pytest.mark.parametrize("at", [1, 5, pytest.param(4, marks=pytest.mark.extended)])
def test_a_state_beside_global_draws_goes_on_exactly(tmp_path, at, shown):
    expected = Life(tmp_path / "whole", Drawing).run()
    Life(tmp_path / "run", Drawing, every=at).run(until=at)
    again = Life(tmp_path / "run", Drawing).run()
    assert again.steps == {step: one for step, one in expected.steps.items() if step > at}
    assert "the Drawing draws from the global generators" in shown()


def read_ahead_by_thread(batches):
    ready = queue.Queue(2)

    def work():
        for batch in batches:
            ready.put(batch)

    threading.Thread(target=work, daemon=True).start()
    while True:
        yield ready.get()


def read_ahead(batches, depth=2):
    held = []
    for batch in batches:
        held.append(batch)
        if len(held) > depth:
            yield held.pop(0)
    yield from held


class Functional:
    """A loop over network and optimizer, neither of which counts its calls."""

    def __init__(self, root, optimizer=nn.Adam, **options):
        begin_process()
        network, _ = network_and_optimizer()
        self.network = network
        self.optimizer = optimizer(network.trainable_params(), 1e-2)
        self.gradients = ms.value_and_grad(network, None, list(self.optimizer.parameters))
        self.batches = data.resumable(pipeline(), EPOCHS)
        self.state = ck.StateManager([network, self.optimizer], self.batches, **grouped(**options))
        self.manager = ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait"))
        self.point = self.manager.restore(self.state)

    def train(self, batch):
        _, gradients = self.gradients(*batch)
        self.optimizer(gradients)


def test_a_thread_that_reads_ahead_is_refused(tmp_path):
    """Before the first save, so that no start goes on from a wrong place."""
    loop = Functional(tmp_path)
    for batch in read_ahead_by_thread(loop.batches):
        loop.train(batch)
        for save in (loop.manager.step, loop.manager.save_final, loop.manager.save):
            with pytest.raises(ck.ResumeError, match="a thread other than the training thread"):
                save(loop.state)
        break
    assert loop.manager.checkpoints() == []


class EveryThird:
    """Says that three batches are a cycle."""

    accumulation_steps = 3
    micro_step = 0


@pytest.mark.parametrize("depth", [1, 2])
def test_a_loop_that_reads_ahead_is_named(tmp_path, shown, depth):
    loop = Functional(tmp_path)
    for batch in read_ahead(loop.batches, depth):
        loop.state.progress()  # a look before the batch is trained
        loop.train(batch)
        assert "batches of resumable() were taken" not in shown()
        loop.manager.step(loop.state)
        break
    loop.manager.close()
    assert f"may not be bit-exact. {depth + 1} batches of resumable() were taken before" in shown()


def test_strict_refuses_a_cycle_read_ahead(tmp_path):
    cycle = EveryThird()
    loop = Functional(tmp_path, cycle=cycle, strict=True)
    left = iter(loop.batches)
    for batch in [next(left) for _ in range(4)]:  # not read_ahead(): strict refuses what it holds, before any batch
        loop.gradients(*batch)
        cycle.micro_step = 1
        with pytest.raises(ck.ResumeError, match="4 batches of resumable\\(\\) were taken before the first step"):
            loop.manager.step(loop.state)
        break
    assert loop.manager.checkpoints() == []


@pytest.mark.parametrize("every", [1, 3])
def test_a_loop_may_call_step_now_and_then(tmp_path, every, shown):
    """The optimizer has counted the batches; later the loop may leave some out."""
    loop = Functional(tmp_path, strict=True)
    for taken, batch in enumerate(loop.batches, loop.point.batches_delivered + 1):
        if taken == 5:
            continue
        loop.train(batch)
        if taken % every == 0:
            loop.manager.step(loop.state)
        if taken == 9:
            break
    loop.manager.close()
    assert loop.manager.latest().progress.batches_delivered == 9


@pytest.mark.parametrize("trained", [(), (2, 5), (3, 4, 5)], ids=["never", "added-up", "after-overflows"])
def test_a_loop_that_steps_each_batch_is_sound(tmp_path, trained):
    """However rarely its optimizer moves."""
    loop = Functional(tmp_path, strict=True)
    for taken, batch in enumerate(loop.batches, loop.point.batches_delivered + 1):
        if taken in trained:
            loop.train(batch)
        loop.manager.step(loop.state)
        if taken == 6:
            break
    loop.manager.close()
    assert loop.manager.latest().progress.batches_delivered == 6


@pytest.mark.parametrize("steps", [(3, 0), (0, 3), (1, 0), (0, 1), (2, 1)])
def test_optimizer_that_moved_most_tells_of_reading(steps):
    """A loop may train with one of two, as in the phases of a GAN."""
    optimizers = [nn.Adam(network_and_optimizer()[0].trainable_params()) for _ in steps]
    counting = counting_of(nn.Dense(2, 2), optimizers)
    counting.begin_loop()
    counting.deliver(3)
    for optimizer, step in zip(optimizers, steps, strict=True):
        ops.assign(optimizer.global_step, ms.Tensor([step], ms.int32))
    assert (counting.read_ahead() is None) == (max(steps) == 3)


@pytest.mark.parametrize(("kind", "step"), [(optim.Adam, "state_step"), (optim.Adamax, "step_t")])
def test_experimental_optimizers_tell_of_reading_too(kind, step):
    optimizer = kind(network_and_optimizer()[0].trainable_params())
    counting = counting_of(nn.Dense(2, 2), [optimizer])
    counting.begin_loop()
    counting.deliver(3)
    ops.assign(getattr(optimizer, step), ms.Tensor(1, ms.int32))
    assert counting.read_ahead() is not None


def test_a_loop_that_only_reads_is_sound(tmp_path):
    """Nothing counts in it, so nothing is known of it."""
    batches = data.resumable(pipeline(), EPOCHS)
    state = ck.StateManager(nn.Dense(2, 2), batches, strict=True)
    with ck.CheckpointManager(tmp_path) as manager:
        manager.restore(state)
        assert len(list(batches)) == EPOCHS * SIZE
        manager.save_final(state)


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_changed_batch_that_comes_again_is_refused(tmp_path, kind):
    """Of a list, whose next epoch would get it changed, and after a resume not."""
    life = Life(tmp_path, lambda: kind(plain_list()), epochs=2)
    life.manager.restore(life.state)
    batches = iter(life.batches)
    next(batches)[0][:] *= 0.5
    with pytest.raises(ck.ResumeError, match=f"batch 0 was changed in place, and the {kind.__name__} still holds it"):
        next(batches)


def test_a_batch_of_the_last_epoch_may_change(tmp_path):
    """Even of a list: it does not come again."""
    life = Life(tmp_path, plain_list, epochs=2)
    life.manager.restore(life.state)
    for x, _ in life.batches:
        if life.batches.epoch == 1:
            x[:] *= 0.5
    assert life.batches.position.delivered == 10


def dicts():
    return ({"x": x, "y": y} for x, y in plain_list())


class Dicts:
    def __iter__(self):
        return dicts()


def test_a_batch_may_be_taken_apart(tmp_path):
    """Columns that are popped, or changed in place, are compared as they were handed out."""

    def life(root, until=None):
        life = Life(tmp_path / root, Dicts, every=3)
        life.manager.restore(life.state)
        with life.manager:
            for batch in life.batches:
                x = batch.pop("x")
                x *= 0.5
                life.cell(ms.Tensor(x), ms.Tensor(batch.pop("y")))
                step = life.state.progress().batches_delivered
                life.steps[step] = digest(life.cell)
                life.manager.step(life.state)
                if step == until:
                    break
        return life.steps

    expected = life("whole")
    life("run", until=3)
    assert life("run") == {step: one for step, one in expected.items() if step > 3}


def test_a_loop_may_change_a_pipelines_batches(tmp_path):
    def life(root, until=None):
        life = Life(tmp_path / root, pipeline, every=3)
        life.manager.restore(life.state)
        with life.manager:
            for x, y in life.batches:
                x[:, 0] = 0.0
                life.cell(x, y)
                step = life.state.progress().batches_delivered
                life.steps[step] = digest(life.cell)
                life.manager.step(life.state)
                if step == until:
                    break
        return life.steps

    expected = life("whole")
    life("run", until=3)
    assert life("run") == {step: one for step, one in expected.items() if step > 3}


class Masking(Callback):
    """Changes the batch before it is trained."""

    def on_train_step_begin(self, run_context):
        run_context.original_args().train_dataset_element[0][:, 0] = 0.0


def test_a_callback_may_change_the_batches(root):
    expected = Job().uninterrupted(2, Masking()).steps
    crashed(root, 4, 2, Masking())
    again = Job().resumed(checkpoints(root), 2, Masking()).steps
    assert again == {step: one for step, one in expected.items() if step > 3}


def doubled(x):
    return x * 2


@pytest.mark.parametrize("augmentation", [None, "stateless"])
def test_training_resumes_by_declared_augmentation(root, shown, augmentation):
    """A pipeline declared stateless is positioned; any other is replayed."""

    def mapped():
        return ds.NumpySlicesDataset(samples(), shuffle=True).map(doubled, ["x"]).batch(4)

    expected = Job(data=mapped).uninterrupted(3).steps
    crashed(root, SIZE + 3, data=mapped)
    again = Job(data=mapped).resumed(checkpoints(root, augmentation=augmentation), 3).steps
    assert again == {step: one for step, one in expected.items() if step >= SIZE + 3}
    assert ("replaying the data" in shown()) == (augmentation is None)


def test_place_with_other_batch_count_is_refused():
    position = IterablePosition(plain_list())
    position.prepare(0, None)
    next(position.batches(2))
    recorded = position.state(1)
    assert position.placed(recorded, 1) == (0, 1)
    with pytest.raises(ck.ResumeError, match="2 batches were trained, but its data had handed out 1"):
        position.placed(recorded, 2)


def test_a_training_over_other_data_is_refused(root):
    crashed(root, 4)
    with pytest.raises(ck.ResumeError, match="batch 2, the last one that was trained, is different now"):
        Job(data=lambda: ds.NumpySlicesDataset(samples(seed=1), shuffle=True).batch(4)).resumed(checkpoints(root), 3)


def test_a_restore_forgets_the_batches_of_before(tmp_path):
    Life(tmp_path, pipeline, every=5).run(until=5)
    life = Life(tmp_path, pipeline)
    life.state.observe_step([np.zeros(3)], None)
    life.manager.restore(life.state)
    assert life.state.last_batch is None


# What is refused


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: iter(plain_list()), ck.ResumeError, r"a list_iterator can be iterated only once"),
        (lambda: (batch for batch in plain_list()), ck.ResumeError, r"a generator can be iterated only once"),
        (OnlyOnce, ck.ResumeError, r"a OnlyOnce can be iterated only once"),
        (lambda: 5, TypeError, r"a int cannot be iterated"),
    ],
)
def test_what_cannot_be_iterated_again_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        data.resumable(make(), 2)


@pytest.mark.parametrize("options", [{"seed": 3}, {"augmentation": "stateless"}])
def test_pipeline_options_are_refused_for_an_iterable(options):
    with pytest.raises(ValueError, match="are for a MindSpore pipeline"):
        data.resumable([1], 2, **options)


@pytest.mark.parametrize("epochs", [0, -1, True, 1.5])
def test_impossible_epochs_are_refused(epochs):
    with pytest.raises(ValueError, match="at least 1"):
        data.resumable([1], epochs)


def test_a_loop_before_the_restore_is_refused():
    """And may begin after it."""
    for make in (pipeline, plain_list):
        batches = data.resumable(make(), 2)
        with pytest.raises(ck.ResumeError, match="do not belong to a training"):
            iter(batches)
        state = ck.StateManager(accumulation_cell(), batches)
        with pytest.raises(ck.ResumeError, match="was not prepared"):
            iter(batches)
        state.begin("runs")
        assert next(iter(batches)) is not None


def test_second_resumable_of_one_loop_is_refused(tmp_path):
    begin_process()
    cell, batches, others = accumulation_cell(), data.resumable(pipeline(), 2), data.resumable(Loader(), 2)
    with ck.CheckpointManager(tmp_path) as manager:
        manager.restore(ck.StateManager(cell, batches))
        with pytest.raises(ck.ResumeError, match=r"one resumable\(\): to read two loaders, combine .*\(zip\)"):
            zip(batches, others, strict=False)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_second_loop_is_refused(tmp_path, kind):
    life = Life(tmp_path, KINDS[kind]).run(until=2)
    with pytest.raises(ck.ResumeError, match="in one loop and only once"):
        iter(life.batches)


def test_a_restore_after_the_loop_began_is_refused(tmp_path):
    life = Life(tmp_path, pipeline).run(until=2)
    with pytest.raises(ck.ResumeError, match="are being iterated already"):
        ck.CheckpointManager(tmp_path / "other").restore(life.state)


def test_batches_of_another_training_are_refused():
    batches = data.resumable(pipeline(), 2)
    ck.StateManager(accumulation_cell(), batches)
    with pytest.raises(ck.ResumeError, match="belong to another StateManager"):
        ck.StateManager(accumulation_cell(), batches)


def test_a_declaration_at_the_wrong_place_is_refused():
    with pytest.raises(ValueError, match=r"give it to ckptkit\.data\.resumable"):
        ck.StateManager(
            accumulation_cell(), data.resumable(pipeline(), 2), training=ck.Training(augmentation="stateless")
        )


def test_an_iterable_that_gives_other_batches_is_refused(tmp_path):
    Life(tmp_path, Loader, every=5).run(until=5)
    with pytest.raises(ck.ResumeError, match=r"the Loader did not give the same 5 batches"):
        Life(tmp_path, lambda: advanced(Loader())).run()


@pytest.mark.parametrize(("seeded", "cause"), [(False, "No seed was set"), (True, "It may lack a seed")])
@pytest.mark.parametrize("make", [list, Rowed])
def test_missing_seed_is_the_first_cause_of_other_data(unseeded, shown, make, seeded, cause):
    """Where NumPy was seeded, data may have been drawn before that, or by another generator."""
    if seeded:
        ms.set_seed(1)
    np.random.bytes(4)
    assert words_drawn_unseeded() == (not seeded), "as a restore asks"
    first, again = (IterablePosition(make([batch_of([row]) for row in range(at, at + 4)])) for at in (0, 100))
    first.prepare(0, None)
    for _ in zip(range(2), first.batches(1)):  # noqa: B905
        recorded = first.state(first.delivered)
    again.prepare(2, recorded)
    try:
        again.batches(1)
        said = shown()
    except ck.ResumeError as error:
        said = str(error)
    for one in (said, another_batch("a pipeline", 1)):
        assert f". {cause}: data, a split or an order that the script draws are other ones at each start." in one


def advanced(loader):
    loader.epoch = 7
    return loader


def test_an_iterable_that_gives_fewer_batches_is_refused(tmp_path):
    Life(tmp_path, Loader, every=4).run(until=4)
    with pytest.raises(ck.ResumeError, match=r"did not give the same 4 batches"):
        Life(tmp_path, lambda: Loader(9)).run()


class Growing:
    """Gives more batches than before, if it has grown."""

    def __init__(self, count=3):
        self.count = count

    def __iter__(self):
        return iter(batch_of([number]) for number in range(self.count))


def test_an_epoch_that_became_longer_is_refused():
    position = IterablePosition(Growing())
    position.prepare(0, None)
    assert [epoch for epoch, _ in position.batches(1)] == [0, 0, 0]
    recorded = position.state(3)
    for count in (3, 4):
        again = IterablePosition(Growing(count))
        again.prepare(3, recorded)
        assert list(again.batches(1)) == [], "nothing is left, so nothing is read"
        if count == 3:
            assert [epoch for epoch, _ in again.batches(2)] == [1, 1, 1]
            continue
        with pytest.raises(ck.ResumeError, match=r"the Growing did not give the same 3 batches"):
            again.batches(2)


class Uneven(WithState):
    """Gives two batches more in each epoch, beginning with 4.

    Args:
        told: What of its length is in its state.
        has_length: Whether it says how long the next epoch is.
    """

    noise, shrinks = staticmethod(lambda: 0.0), 2

    def __init__(self, told):
        super().__init__()
        self.rows, self.told = 4, told

    def state_dict(self):
        return {**self.state, "rows": self.rows} if self.told == "rows" else self.state

    def load_state_dict(self, state):
        self.rows = state.get("rows", self.rows)
        self.state = {name: state[name] for name in ("epoch", "batch")}

    def length(self):
        return 4 + 2 * self.state["epoch"] if self.told == "epoch" else self.rows

    def __iter__(self):
        while self.state["batch"] < self.length():
            self.state["batch"] += 1
            yield self.noise() + np.full(3, self.state["batch"] + 100 * self.state["epoch"])
        self.rows += 2
        self.state = {"epoch": self.state["epoch"] + 1, "batch": 0}


class UnevenSized(Uneven):
    def __len__(self):
        return self.length()


class UnevenNoisy(UnevenSized):
    noise = staticmethod(np.random.random)


def numbers(kind, told, *, until=99, recorded=None):
    """Return epoch and batch of what is left, and the record after ``until`` batches."""
    position = IterablePosition(kind(told))
    position.prepare(0 if recorded is None else recorded["delivered"], recorded)
    given = []
    for epoch, batch in position.batches(4):
        given.append((epoch, batch.tobytes()))
        if position.delivered == until:
            return given, position.state(until)
    return given, None


@pytest.mark.parametrize("at", [3, 4, 8, 10, 12, 20])
@pytest.mark.parametrize("told", ["rows", "epoch"])
@pytest.mark.parametrize("kind", [Uneven, UnevenSized, UnevenNoisy])
def test_epochs_of_other_lengths_resume_if_the_state_has_them(shown, kind, told, at):
    """Within the first, at its end, within the second at the length of the first and at its end, and in the third."""
    np.random.seed(5)
    whole, _ = numbers(kind, told)
    assert [epoch for epoch, _ in whole] == [epoch for epoch in range(4) for _ in range(4 + 2 * epoch)]
    np.random.seed(5)
    begun, recorded = numbers(kind, told, until=at)
    rest, _ = numbers(kind, told, recorded=recorded)
    assert begun + rest == whole
    assert shown().count("gave 6 batches in epoch 1 and 4 in the epoch before") == 2, "once uninterrupted"


class Longer(WithState):
    """Gives one batch more at the end of an epoch."""

    def __iter__(self):
        yield from super().__iter__()
        yield batch_of([0])


@pytest.mark.parametrize(("kind", "doubted"), [(WithState, False), (Longer, True)])
def test_epoch_with_state_that_became_longer_is_named(shown, kind, doubted):
    position = IterablePosition(WithState())
    position.prepare(0, None)
    assert len(list(position.batches(1))) == 4
    again = IterablePosition(kind())
    again.prepare(4, position.state(4))
    assert len(list(again.batches(1))) == 0
    assert next(again.batches(2))[0] == 1
    assert (f"the {kind.__name__} gives a different batch 3" in shown()) == doubted


class Rows:
    """As many in each epoch as is said; MindSpore counts those of the first time."""

    def __init__(self, *counts):
        self.counts = iter(counts)

    def __iter__(self):
        for row in range(next(self.counts)):
            yield (np.full(6, row, np.float32),)


@pytest.mark.parametrize(("second", "given"), [(2, 5), (4, 6)])
def test_epochs_of_unequal_length_end_the_loop(tmp_path, second, given):
    begin_process()
    batches = data.resumable(ds.GeneratorDataset(Rows(3, 3, second), ["x"]).batch(1), 2)
    ck.CheckpointManager(tmp_path).restore(ck.StateManager(nn.Dense(2, 2), batches))
    left = iter(batches)
    for _ in range(given):
        next(left)
    with pytest.raises(ck.ResumeError, match="an epoch has 3 batches, but epoch 1 has another number"):
        next(left)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plain_list()[:4], "size: the checkpoint has 5, this training has 4"),
        (Loader, "iterable: the checkpoint has list, this training has Loader"),
        (pipeline, "made with a list, but this training reads a MindSpore pipeline"),
    ],
)
def test_other_data_is_named(tmp_path, make, message):
    Life(tmp_path, plain_list, every=2).run(until=2)
    with pytest.raises(ck.ResumeError, match=message):
        Life(tmp_path, make).run()


def test_a_pipeline_where_an_iterable_was_is_named(tmp_path):
    Life(tmp_path, pipeline, every=2).run(until=2)
    with pytest.raises(ck.ResumeError, match="made with a MindSpore pipeline, but this training reads a list"):
        Life(tmp_path, plain_list).run()


class Once:
    """Looks as if it could be iterated again."""

    def __init__(self):
        self.rows = iter(plain_list())

    def __iter__(self):
        return self.rows


def test_an_epoch_without_a_batch_is_refused(tmp_path):
    with pytest.raises(ck.ResumeError, match=r"the Once gave no batch in epoch 1"):
        Life(tmp_path, Once).run()


def test_a_batch_that_was_not_trained_is_noticed(tmp_path):
    life = Life(tmp_path, plain_list)
    life.manager.restore(life.state)
    batches = iter(life.batches)
    next(batches)
    with pytest.raises(ck.ResumeError, match=r"called 0 times, but 1 batches were delivered.*read ahead before resum"):
        life.manager.save(life.state)


def test_a_call_without_a_batch_is_noticed(tmp_path):
    life = Life(tmp_path, plain_list)
    life.manager.restore(life.state)
    life.cell(*map(ms.Tensor, plain_list()[0]))
    with pytest.raises(ck.ResumeError, match="0 batches were handed out, but training counts 1"):
        life.manager.save(life.state)


# Seeds


def test_the_seed_of_the_pipeline_can_be_given(tmp_path):
    def order(seed):
        life = Life(tmp_path / f"{seed}", pipeline, seed=seed)
        return digest(life.cell), list(life.run().steps.values())

    first, second = order(9), order(10)
    assert first[0] == second[0]
    assert first[1] != second[1]
    again = Life(tmp_path / "9", pipeline, seed=9, epochs=4).run()
    assert list(again.steps) == [*range(3 * SIZE + 1, 4 * SIZE + 1)]
    with pytest.raises(ck.ResumeError, match=r"the checkpoint has 9, this process set 10"):
        Life(tmp_path / "9", pipeline, seed=10, epochs=5).run()


def test_seed_that_means_unset_is_refused():
    with pytest.raises(ValueError, match="5489 means no seed"):
        data.resumable(pipeline(), 2, seed=5489)


@pytest.mark.parametrize("until", [2, None])
def test_the_process_is_left_as_it_was(tmp_path, until):
    begin_process()
    dataset = pipeline()
    life = Life(tmp_path, lambda: dataset, seed=77)
    life.run(until=until)
    del life.batches
    assert (ds.config.get_seed(), ds.config.get_fast_recovery(), dataset.get_init_step()) == (5, True, 0)
    assert not vars(dataset).keys() & {"create_tuple_iterator", "create_dict_iterator"}


# The facade


def test_the_facade_is_lazy_and_complete():
    code = "import sys, ckptkit as ck; print('mindspore' in sys.modules, *ck.data.__all__)"
    assert python("-c", code).stdout.split() == ["False", *ck.data.__all__]
    known = {"Augmented", "EpochSampler", "GlobalIndices", "GlobalSampler", "resumable", "sample_rng"}
    assert set(ck.data.__all__) == known
    assert all(hasattr(data, name) for name in data.__all__)
    assert set(data.__all__) <= {*dir(data)}
    with pytest.raises(AttributeError, match=r"'ckptkit\.data' has no attribute 'nothing'"):
        data.nothing  # noqa: B018
