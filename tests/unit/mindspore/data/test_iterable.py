"""Python iterables go on exactly where they were, by their own state or read again; what may not is named."""

import itertools
from collections.abc import Iterator

import mindspore as ms
import numpy as np
import pytest
from support.loaders import Again, DrawingAgain
from support.training import later

from ckptkit import data
from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.batch_digest import digest_of
from ckptkit.mindspore.data.iterable import IterablePosition
from ckptkit.mindspore.data.replay import another_batch
from ckptkit.mindspore.rng import words_drawn_unseeded

BATCHES, EPOCHS = 4, 3
STORED = ("epoch", "place", "level", "order", "read")


@pytest.fixture
def told(caplog):
    caplog.set_level("INFO", "ckptkit")

    def read():
        text = "\n".join(record.getMessage() for record in caplog.records)
        caplog.clear()
        return text

    return read


class Loader:
    """Counts in attributes before it gives a batch; draws the next order where an epoch ends.

    What the loop tells it decides the next batch and all later orders (``"at once"``), the orders, or nothing.
    """

    learns = "nothing"

    def __init__(self):
        self.epoch = self.place = self.iterations = 0
        self.level, self.read = 1.0, [0]  # its state has the list itself, which it goes on changing
        self.order = self.drawn()

    def drawn(self):
        return np.random.default_rng([7, self.epoch, int(1e6 * self.level)]).permutation(12).reshape(BATCHES, 3)

    def value(self, index):
        rows = np.random.default_rng(self.order[index]).random(3)
        return rows * self.level if self.learns == "at once" else rows

    def batch(self):
        self.place += 1
        self.read[0] += 1
        return self.value(self.place - 1) + self.read[0]

    def end(self):
        self.epoch, self.place = self.epoch + 1, 0
        self.order = self.drawn()

    def __iter__(self):
        self.iterations += 1
        while self.place < BATCHES:
            yield self.batch()
        self.end()

    def tell(self, value):
        if self.learns != "nothing":
            self.level = 0.9 * self.level + value

    def state_dict(self):
        return {name: getattr(self, name) for name in STORED}

    def load_state_dict(self, state):
        vars(self).update({name: state[name] for name in STORED})


def life(make, recorded=None, until=None, epochs=EPOCHS, *, tells="before"):
    """Deliver what is left, up to ``until``; returns epoch and digest of each batch, and the last record.

    The loop tells its loader something ``"before"`` or ``"after"`` each save.
    """
    source = make()
    if recorded is not None:
        np.random.set_state(recorded["numpy"])
    position = IterablePosition(source)
    position.prepare(0 if recorded is None else recorded["delivered"], recorded)
    given = {}
    for epoch, batch in position.batches(epochs):
        given[position.delivered] = (epoch, digest_of(batch))
        if tells == "before" and isinstance(source, Loader):
            source.tell(float(np.mean(batch)))
        recorded = {**position.state(position.delivered), "numpy": np.random.get_state()}
        if tells == "after":
            source.tell(float(np.mean(batch)))
        if position.delivered == until:
            return given, recorded
    return given, {**position.state(position.delivered), "numpy": np.random.get_state()}


def loader(iterate):
    return type(iterate.__name__, (Loader,), {"__iter__": iterate})


@loader
def cleans_up(self):
    """Begins at 0 again however its iterator ends."""
    try:
        yield from Loader.__iter__(self)
    finally:
        self.place = 0


class AtNextIter(Loader):
    """Takes a loaded state, and begins the next epoch, when it is iterated next, as torchdata's StatefulDataLoader."""

    loaded = None

    def __iter__(self):
        if self.loaded is not None:
            super().load_state_dict(self.loaded)
            self.loaded = None
        elif self.place == BATCHES:
            self.end()
        return self._left()

    def _left(self):
        while self.place < BATCHES:
            yield self.batch()

    def state_dict(self):
        return super().state_dict() if self.loaded is None else self.loaded

    def load_state_dict(self, state):
        self.loaded = state


class OfGlobal(Loader):
    """Draws noise for each batch, and the next order where the epoch ends, from NumPy's global generator."""

    def drawn(self):
        return np.random.permutation(12).reshape(BATCHES, 3)

    def batch(self):
        return super().batch() + np.random.normal()  # of two numbers, it keeps one back


class Itself(Loader):
    def __iter__(self):
        if self.place == BATCHES:
            self.end()
        return self

    def __next__(self):
        if self.place == BATCHES:
            raise StopIteration
        return self.batch()


def variant(kind, learns, counts, sized):
    """The kind with other habits; ``counts``: its state has a statistic that is not restored."""

    class Variant(kind):
        given = 0

        def batch(self):
            self.given += 1
            return super().batch()

        def state_dict(self):
            return {**super().state_dict(), "given": self.given} if counts else super().state_dict()

        def load_state_dict(self, state):
            super().load_state_dict({name: value for name, value in state.items() if name != "given"})

    Variant.learns = learns
    if sized:
        Variant.__len__ = lambda self: BATCHES
    return Variant


@pytest.mark.parametrize("kind", [Loader, cleans_up, AtNextIter, OfGlobal, Itself])
def test_loader_with_state_goes_on_exactly(kind, told):
    """Within each epoch, at its ends and after the last one, with all that the loop has told it."""
    for habits in itertools.product(("at once", "orders", "nothing"), (False, True), (False, True)):
        make = variant(kind, *habits)
        np.random.seed(5)
        expected, _ = life(make)
        assert [epoch for epoch, _ in expected.values()] == [epoch for epoch in range(EPOCHS) for _ in range(BATCHES)]
        for at in (1, 3, 4, 5, 8, 11, 12):
            np.random.seed(5)
            begun, recorded = life(make, until=at)
            np.random.seed(6)
            rest, _ = life(make, recorded)
            assert (begun | rest, rest) == (expected, later(expected, at)), (habits, at)
        said = told()
        assert kind is AtNextIter or "may not be bit-exact" not in said, habits
        assert ("draws from the global generators" in said) == (kind is OfGlobal), habits


@loader
def behind(self):
    """Counts a batch only when the next one is asked for."""
    while self.place < BATCHES:
        yield self.value(self.place)
        self.place += 1
    self.end()


@loader
def behind_later(self):
    """Counts the first batch of an epoch in time, and every other one when the one after the next is asked for."""
    for index in range(self.place, BATCHES):
        self.place = max(1, index - 1)
        yield self.value(index)
    self.end()


@loader
def ahead(self):
    """Has read one batch more than it gave."""
    held = []
    for batch in Loader.__iter__(self):
        held.append(batch)
        if len(held) == 2:
            yield held.pop(0)
    yield from held


@loader
def buffered(self):
    """Has read all batches of an epoch before it gives one."""
    yield from list(Loader.__iter__(self))


@loader
def longer(self):
    """Gives one batch more at the end of an epoch."""
    yield from Loader.__iter__(self)
    yield np.zeros(3)


class Placeless(Loader):
    """Has no place but that of NumPy's global generator."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def __iter__(self):
        for _ in range(BATCHES):
            yield np.full(3, np.random.normal())


def test_state_behind_its_batches_is_refused():
    """At its first batch, while nothing is lost; or at the resume that would train some twice."""
    with pytest.raises(ResumeError, match="same before and after the first batch of epoch 0"):
        life(behind)
    _, recorded = life(behind_later, until=4)
    with pytest.raises(ResumeError, match="the behind_later was behind: from its state before batch 3"):
        life(behind_later, recorded)


def test_state_ahead_of_its_batches_is_named(told):
    for at in (2, 4, 6):
        _, recorded = life(ahead, until=at)
        assert "gives a different batch" not in told()
        life(ahead, recorded)
        assert f"the ahead gives a different batch {at - 1} than the one that was trained" in told()


def test_state_far_ahead_is_named_early(told):
    """At the end of the first epoch, before a resume could leave anything out."""
    np.random.normal()  # keeps back a second number, which is the next one
    for kind in (buffered, Loader, OfGlobal, Placeless):
        life(kind, epochs=2)
        words = f"state_dict() of the {kind.__name__} was the same before and after the last batch of epoch 0"
        assert told().count(words) == (kind is buffered), kind


class Timed(variant(Loader, "orders", False, True)):
    calls = 0

    def state_dict(self):
        self.calls += 1
        return {**super().state_dict(), "at": self.calls}


def test_what_the_loop_tells_its_loader_after_a_save_is_named(told):
    for kind in (variant(Loader, "orders", False, True), Timed):
        life(kind, tells="after")
        said = told()
        assert said.count("changed between the save") == 1
        assert f"of the {kind.__qualname__} changed between the save after batch 0 and the next batch" in said
    life(Timed, tells="before")
    assert "changed between the save" not in told()


class Uneven(Loader):
    """Gives two batches more in each epoch, beginning with 4; its state says how many, or its epoch does."""

    said = "rows"

    def __init__(self):
        super().__init__()
        self.rows = BATCHES

    def __len__(self):
        return self.rows if self.said == "rows" else BATCHES + 2 * self.epoch

    def __iter__(self):
        while self.place < Uneven.__len__(self):
            self.place += 1
            yield np.full(3, self.place + 100 * self.epoch)
        self.rows += 2
        self.end()

    def state_dict(self):
        return {**super().state_dict(), "rows": self.rows} if self.said == "rows" else super().state_dict()

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.rows = state.get("rows", self.rows)


def of_length(length):
    return type("OfLength", (Uneven,), {"__len__": length})


def test_length_that_did_not_hold_is_not_believed():
    position = IterablePosition(of_length(lambda self: BATCHES)())
    position.prepare(0, None)
    ends = [epoch for epoch, _ in position.batches(3) if position.ends_epoch(position.delivered)]
    assert ends == [0, 1]  # within the second one, nothing has shown it yet


def test_epochs_of_other_lengths_resume_if_the_state_has_them(monkeypatch):
    """Within the first, at its end, within the second at the length of the first and at its end, and in the third."""
    for kind, said, at in itertools.product((Uneven, of_length(None)), ("rows", "epoch"), (3, 4, 8, 10, 12, 20)):
        monkeypatch.setattr(Uneven, "said", said)
        whole, _ = life(kind, epochs=4)
        assert [epoch for epoch, _ in whole.values()] == [epoch for epoch in range(4) for _ in range(4 + 2 * epoch)]
        _, recorded = life(kind, until=at, epochs=4)
        assert life(kind, recorded, epochs=4)[0] == later(whole, at), (kind, said, at)


def test_epoch_with_state_that_became_longer_is_named(told):
    for kind in (Loader, longer):
        _, recorded = life(Loader, epochs=1)
        assert life(kind, recorded, epochs=1)[0] == {}
        life(kind, recorded, epochs=2)
        assert (f"the {kind.__name__} gives a different batch 3" in told()) == (kind is longer)


class Lengthening(Again):
    def __iter__(self):
        self.batches.append(np.full(3, len(self.batches)))
        return super().__iter__()


def rows(count=BATCHES):
    return [np.full(3, number) for number in range(count)]


class BeginsAnew(Iterator):
    """Is its own iterator, and begins again."""

    def __iter__(self):
        self.batches = iter(rows())
        return self

    def __next__(self):
        return next(self.batches)


@pytest.mark.parametrize(
    "make", [*(lambda kind=kind: kind(rows()) for kind in (Again, DrawingAgain, Lengthening)), BeginsAnew, rows]
)
def test_what_has_no_state_is_read_again_exactly(make, told):
    np.random.seed(5)
    expected, _ = life(make)
    assert told() == ""
    for at in expected:
        np.random.seed(5)
        _, recorded = life(make, until=at)
        assert recorded["state"] is None
        np.random.seed(6)
        assert life(make, recorded)[0] == later(expected, at), at


def test_what_does_not_give_the_same_batches_is_refused():
    for make, again, at, epochs in (
        (lambda: Again(rows()), lambda: Again(rows(), epoch=8), 5, 3),
        (lambda: Again(rows()), lambda: Again(rows(3)), 4, 3),
        (rows, lambda: rows(5), 4, 1),
    ):
        _, recorded = life(make, until=at if epochs > 1 else None, epochs=epochs)
        with pytest.raises(ResumeError, match=rf"the {type(again()).__name__} did not give the same {at} batches"):
            life(again, recorded)
    assert life(again, recorded, epochs=1)[0] == {}, "nothing is left, so nothing is read"


def test_what_cannot_be_iterated_again_is_refused():
    left = iter(rows())
    with pytest.raises(ResumeError, match=r"the Once gave no batch in epoch 1"):  # though it looks as if it could
        life(type("Once", (), {"__iter__": lambda self: left}))
    for given, error, message in (
        (iter(rows()), ResumeError, "a list_iterator can be iterated only once"),
        (type("Own", (BeginsAnew,), {"__iter__": lambda self: self})(), ResumeError, "a Own can be iterated only once"),
        (5, TypeError, "a int cannot be iterated"),
    ):
        with pytest.raises(error, match=message):
            data.resumable(given, 2)


def test_changed_batch_that_comes_again_is_refused():
    """Of a list, whose next epoch would get it changed, and after a resume not; the last epoch may change it."""
    for kind in (list, tuple):
        position = IterablePosition(kind(rows()))
        position.prepare(0, None)
        batches = position.batches(2)
        next(batches)[1][:] += 1
        with pytest.raises(ResumeError, match=f"batch 0 was changed in place, and the {kind.__name__} still holds it"):
            next(batches)
    position = IterablePosition(rows())
    position.prepare(0, None)
    for epoch, batch in position.batches(2):
        batch[:] += epoch
    assert position.delivered == 2 * BATCHES


def test_other_data_is_named():
    _, recorded = life(rows, until=1)
    IterablePosition(rows()).check(recorded)
    for other, stored, message in (
        (rows(3), recorded, "size: the checkpoint has 4, this training has 3"),
        (Again(rows()), recorded, "iterable: the checkpoint has list, this training has Again"),
        (Loader(), recorded, "has_state: the checkpoint has False, this training has True"),
        (rows(), {"size": 4}, "made with a MindSpore pipeline, but this training reads a list"),
    ):
        with pytest.raises(ResumeError, match=message):
            IterablePosition(other).check(stored)


@pytest.mark.parametrize(("seeded", "cause"), [(False, "No seed was set"), (True, "It may lack a seed")])
def test_missing_seed_is_the_first_cause_of_other_data(unseeded, told, seeded, cause):
    """Where NumPy was seeded, data may have been drawn before that, or by another generator."""
    if seeded:
        ms.set_seed(1)
    np.random.bytes(4)
    assert words_drawn_unseeded() == (not seeded), "as a restore asks"
    said = [another_batch("a pipeline", 1)]
    _, recorded = life(rows, until=2)
    with pytest.raises(ResumeError) as refused:
        life(lambda: rows()[::-1], recorded)
    said.append(str(refused.value))
    _, recorded = life(ahead, until=2)
    life(ahead, recorded)
    said.append(told())
    for text in said:
        assert f"{cause}: data, a split or an order that the script draws are other ones at each start." in text


class OfAnotherLibrary:
    """A tensor that NumPy can read."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


def test_digest_depends_on_bits_types_shapes_only():
    x = np.arange(6, dtype=np.float32)
    same = [[x], (x,), {"x": x}, [ms.Tensor(x)], [x[::-1][::-1]], [OfAnotherLibrary(x)]]
    assert len({digest_of(batch) for batch in same}) == 1
    others = [[x], [x.reshape(2, 3)], [x.astype(np.int32)], [x, x], [-x], [x[:5]], [np.array(["a", "b"])], [1], ["1"]]
    others += [[{"a": x}], [{"b": x}], [True], [None], [b"1"], [np.array(["a", "c"])], [[x], []], [[], [x]]]
    others += [[x.view(np.int32)], [[x], x], [[x, x]], [{"a": x}, x], [{"a": x, "b": x}]]
    assert len({digest_of(batch) for batch in others}) == len(others)
    assert digest_of([np.asfortranarray(x.reshape(2, 3))]) == digest_of([x.reshape(2, 3)])
    assert digest_of([object()]) is None


def test_undigestible_batch_is_unchecked_and_logged_once(told):
    _, recorded = life(lambda: [object(), object()], until=2)
    assert recorded["probe"] is None
    assert told().count("a resume cannot check its position") == 1
    assert len(life(lambda: [object(), object()], recorded)[0]) == 4
