"""A state_dict() that does not tell two states apart is named; one that does is not, however it is written."""

from __future__ import annotations

import enum
import itertools
import random
from collections import Counter, OrderedDict, deque
from dataclasses import asdict, dataclass
from typing import ClassVar, NamedTuple

import mindspore as ms
import numpy as np
import pytest

from ckptkit.mindspore.inspect import find_lost_state, find_parted_objects, find_remade_otherwise
from ckptkit.mindspore.inspect.values import lost


class Mean:
    def __init__(self):
        self.base, self.mean, self.count = 0.1, 0.0, 0

    def add(self, loss):
        self.count += 1
        self.mean += (loss - self.mean) / self.count

    def load_state_dict(self, state):
        self.mean, self.count = state["mean"], state["count"]


class Rounded(Mean):
    def state_dict(self):
        return {"mean": round(self.mean, 3), "count": self.count}


class RoundedLater(Rounded):
    def __init__(self):
        super().__init__()
        self.mean = 12345.678901


class AsText(Mean):
    def state_dict(self):
        return {"text": f"{self.mean:.6f} {self.count}"}


class InTens(Mean):
    def state_dict(self):
        return {"mean": self.mean, "count": self.count // 10}


class Narrowed(Mean):
    def __init__(self):
        super().__init__()
        self.mean = np.zeros(3)

    def state_dict(self):
        return {"mean": self.mean.astype(np.float32), "count": self.count}


class RoundedInList(Mean):
    def __init__(self):
        super().__init__()
        self.mean = [{"a": 0.5}, {"a": 0.25}]

    def state_dict(self):
        return {"mean": [{"a": round(one["a"], 2)} for one in self.mean], "count": self.count}


class Public:
    def state_dict(self):
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def load_state_dict(self, state):
        vars(self).update(state)


class Balancer(Public):
    def __init__(self):
        self.steps, self._running = 0, [1.0, 1.0]

    def weights(self, losses):
        self.steps += 1
        self._running = [0.9 * a + 0.1 * b for a, b in zip(self._running, losses, strict=True)]
        return self._running


class Remembers(Public):
    def __init__(self):
        self.steps, self._last = 0, None

    def rate(self, loss):
        self.steps += 1
        rate = 1.0 if self._last is None or loss < self._last else 0.5
        self._last = loss
        return rate


class RemembersTheFirst(Public):
    def __init__(self):
        self.steps, self._first = 0, None

    def rate(self, loss):
        self.steps += 1
        if self._first is None:
            self._first = loss
        return loss / self._first


class Window(Public):
    def __init__(self):
        self.steps, self._seen = 0, {"a": deque(maxlen=3)}

    def add(self, loss):
        self.steps += 1
        self._seen["a"].append(loss)
        return sum(self._seen["a"])


class Draws(Public):
    def __init__(self):
        self.steps, self._rng = 0, random.Random(3)

    def noise(self):
        self.steps += 1
        self._rng = random.Random(self._rng.random())
        return self._rng.random()


class Scale:
    def __init__(self):
        self.scale = 1.0

    def __call__(self, x):
        self.scale = 0.9 * self.scale + 0.1 * x
        return x / self.scale

    def state_dict(self):
        return {"scale": self.scale}

    def load_state_dict(self, state):
        self.scale = state["scale"]


class Hosting:
    def __init__(self, *plugins):
        self.plugins = plugins

    def load_state_dict(self, state):
        for one in self.plugins:
            one.load_state_dict(state[type(one).__name__])


class ByClassName(Hosting):
    def state_dict(self):
        return {type(one).__name__: one.state_dict() for one in self.plugins}


class ByNumber(Hosting):
    def state_dict(self):
        return {str(number): one.state_dict() for number, one in enumerate(self.plugins)}


class Whole(Mean):
    def state_dict(self):
        return {"mean": self.mean, "count": self.count}


class AsHexadecimal(Mean):
    def state_dict(self):
        return {"text": f"{self.mean.hex()} {self.count}"}


class Cached(Public):
    def __init__(self):
        self.steps, self.cov, self._factor, self._factor_of = 0, np.eye(2), None, -1

    def factor(self):
        self.steps += 1
        if self._factor_of != self.steps:
            self._factor = np.linalg.inv(self.cov)
            self._factor_of = self.steps
        return self._factor


class SetBeforeEachUse(Public):
    def __init__(self):
        self.steps, self._batch = 0, None

    def __call__(self, x):
        self._batch = x
        self.steps += 1
        return self._half() + self._batch

    def _half(self):
        return self._batch / 2


class MadeByLoad(Public):
    def __init__(self):
        self.steps, self._table = 0, [0]

    def step(self):
        self.steps += 1
        self._table.append(self.steps)
        return self._table[-1]

    def load_state_dict(self, state):
        self.steps = state["steps"]
        self._rebuild()

    def _rebuild(self):
        self._table = [*range(self.steps + 1)]


class OnlyShown(Public):
    def __init__(self):
        self.steps, self._shown = 0, 0

    def step(self):
        self.steps += 1
        self._shown += 1
        print(self._shown)


class Memory:
    """forgets what was not used for longest"""

    def __init__(self):
        self.slots = OrderedDict()

    def get(self, key, make):
        if key in self.slots:
            self.slots.move_to_end(key)
        else:
            self.slots[key] = make()
        return self.slots[key]

    def load_state_dict(self, state):
        self.slots = OrderedDict((key, np.array(value)) for key, value in state["slots"])


class Sorted(Memory):
    def state_dict(self):
        return {"slots": [[key, self.slots[key]] for key in sorted(self.slots)]}


class InOrder(Memory):
    def state_dict(self):
        return {"slots": [[key, value] for key, value in self.slots.items()]}


class Noise:
    def __init__(self):
        self.rng = np.random.RandomState(3)

    def __call__(self):
        return self.rng.randn()


class KeyAndPosition(Noise):
    def state_dict(self):
        _, key, pos, *_ = self.rng.get_state()
        return {"key": key.copy(), "pos": int(pos)}

    def load_state_dict(self, state):
        self.rng.set_state(("MT19937", np.asarray(state["key"], np.uint32), state["pos"]))


class WholeState(Noise):
    def state_dict(self):
        return {"rng": self.rng.get_state(legacy=False)}

    def load_state_dict(self, state):
        self.rng.set_state(state["rng"])


class Phases:
    def __init__(self):
        self.steps, self.phase = 0, self.warm_up

    def __call__(self):
        self.steps += 1
        return self.phase()

    def warm_up(self):
        if self.steps == 5:
            self.phase = self.cruise
        return 0.1

    def cruise(self):
        return 1.0

    def state_dict(self):
        return {name: value for name, value in vars(self).items() if not callable(value)}

    def load_state_dict(self, state):
        vars(self).update(state)


class Loader:
    def __init__(self):
        self.rows, self.epoch, self.index, self.start = list(range(8)), 0, 0, 0
        self.rng, self.order = np.random.default_rng(3), np.arange(8)

    def state_dict(self):
        return {"epoch": self.epoch, "index": self.index}

    def load_state_dict(self, state):
        self.epoch, self.index = state["epoch"], state["index"]
        self.start = self.index

    def __len__(self):
        return len(self.rows)


class StartStays(Loader):
    def __iter__(self):
        self.epoch += 1
        for index in range(self.start, len(self)):
            self.index = index + 1
            yield self.rows[index]


class StartIsUsedUp(Loader):
    def __iter__(self):
        self.epoch += 1
        begin, self.start = self.start, 0
        for index in range(begin, len(self)):
            self.index = index + 1
            yield self.rows[index]


class Shuffling(Loader):
    def __iter__(self):
        self.epoch += 1
        yield from self.rng.permutation(len(self))


class Padding(Loader):
    def __init__(self):
        super().__init__()
        self.padded, self.of_epoch = {}, (-1, None)

    def pad(self, key):
        if key not in self.padded:
            self.padded[key] = [self.rows[key]] * 2
        return self.padded[key]

    def ordered(self, epoch):
        if self.of_epoch[0] != epoch:
            self.of_epoch = epoch, list(range(epoch, 8))
        return self.of_epoch[1]


class FirstSeen(Padding):
    def pad(self, key):
        if key not in self.padded:
            self.padded[key] = self.index
        return self.padded[key]

    def step(self):
        self.index += 1


class Printing:
    """its load_state_dict() tells the user, so it is not tried"""

    said = 0

    def __init__(self):
        self.rows = []

    def add(self, row):
        self.rows.append(row)

    def state_dict(self):
        return {"rows": sorted(self.rows)}

    def load_state_dict(self, state):
        type(self).said += 1
        print("resumed")
        self.rows = list(state["rows"])


class WithAClock:
    def __init__(self):
        self.calls = 0

    def state_dict(self):
        self.calls += 1
        return {"calls": self.calls}


class WithAFile(Balancer):
    closed = 0

    def __del__(self):
        type(self).closed += 1


class Particular(Balancer):
    def state_dict(self):
        if self._running != [1.0, 1.0]:
            raise ValueError(self._running)
        return super().state_dict()


@dataclass(frozen=True)
class Trend:
    level: float = 1.0
    slope: float = 0.0

    def state_dict(self):
        return asdict(self)


class Slots:
    __slots__ = ("mean", "steps")

    def __init__(self):
        self.steps, self.mean = 0, 0.0

    def add(self, loss):
        self.steps += 1
        self.mean = 0.9 * self.mean + loss

    def state_dict(self):
        return {"steps": self.steps, "mean": self.mean}


class SlotsRounded(Slots):
    __slots__ = ()

    def state_dict(self):
        return {"steps": self.steps, "mean": np.float32(self.mean)}


@pytest.mark.parametrize(
    ("make", "lost"),
    [
        (Rounded, "all digits of mean"),
        (RoundedLater, "all digits of mean"),
        (AsText, "all digits of mean"),
        (InTens, "all digits of count"),
        (Narrowed, "all digits of mean"),
        (RoundedInList, "all digits of mean"),
        (SlotsRounded, "all digits of mean"),
        (Sorted, "slots: after load_state_dict() of its own state_dict(), this is another value"),
        (KeyAndPosition, "rng: after load_state_dict() of its own state_dict(), this is another value"),
        (Phases, "phase: its code changes this"),
        (StartStays, "sets start by index, and no other code sets it back"),
        (Shuffling, "rng: its code changes this"),
        (FirstSeen, "padded: its code changes this"),
        (Balancer, "_running: its code changes this"),
        (Remembers, "_last: its code changes this"),
        (RemembersTheFirst, "_first: its code changes this"),
        (Window, "_seen: its code changes this"),
        (Draws, "_rng: its code changes this"),
        (lambda: ByClassName(Scale(), Scale()), "plugins[0].scale: its code changes this"),
    ],
)
def test_state_that_a_state_dict_does_not_tell_apart_is_named(make, lost):
    one = make()
    before = dict(vars(one)) if not isinstance(one, Slots) else {}
    (found,) = find_lost_state([("kept", one)])
    assert found.where == "kept"
    assert lost in found.why
    assert not found.certain
    assert all(vars(one)[name] is value for name, value in before.items())


def shared():
    one = Scale()
    host = ByNumber(one)
    host.first = one  # also reached by another name
    return host


@pytest.mark.parametrize(
    "make",
    [
        *(Whole, AsHexadecimal, Cached, SetBeforeEachUse, MadeByLoad, OnlyShown, WithAClock, Particular, Trend, Slots),
        *(InOrder, WholeState, StartIsUsedUp, Padding, Printing),
        lambda: ByNumber(Scale(), Scale()),
        shared,
        lambda: np.random.default_rng(1),
        dict,
    ],
)
def test_state_that_is_whole_or_made_anew_is_not_named(make):
    assert [*find_lost_state([("kept", make())])] == []


def test_a_load_that_does_more_than_set_values_is_not_tried():
    assert [*find_lost_state([("kept", Printing())])] == []
    assert Printing.said == 0


class Recorder:
    def __init__(self):
        self.losses = []

    def add(self, loss):
        self.losses.append(loss)

    def state_dict(self):
        return {"losses": list(self.losses)}


class GivesAnother(Recorder):
    def load_state_dict(self, state):
        self.losses = list(state["losses"])


class Fills(Recorder):
    def load_state_dict(self, state):
        self.losses[:] = state["losses"]


class Governor:
    def __init__(self, losses):
        self.losses = losses


@pytest.mark.parametrize(("kind", "parts"), [(GivesAnother, True), (Fills, False)])
def test_an_object_that_a_load_takes_away_from_others_is_named(kind, parts):
    one = kind()
    others = [("governor", Governor(one.losses)), ("bystander", Governor([]))]
    found = [str(each) for each in find_parted_objects([("recorder", one)], others)]
    assert len(found) == parts
    assert all("gives losses another object, but governor keeps the one that it has now" in each for each in found)
    assert [*find_parted_objects([("recorder", one)], [("asks", Governor(one))])] == []


def test_what_a_large_table_hides_from_one_variable_is_found_by_another():
    """The walk from the first ends in the table, when it has met the governor, and not yet what that has."""
    one = GivesAnother()
    governor = Governor(one.losses)
    others = [("context", {"rows": [(at, [at]) for at in range(20_000)], "governor": governor}), ("governor", governor)]
    (found,) = map(str, find_parted_objects([("recorder", one)], others))
    assert "governor keeps the one that it has now" in found


def test_tables_of_texts_do_not_count_as_objects_to_look_at():
    one = GivesAnother()
    tables = [(f"table {at}", [f"{at} {row}" for row in range(10_000)]) for at in range(6)]
    assert len([*find_parted_objects([("recorder", one)], [*tables, ("governor", Governor(one.losses))])]) == 1


class ManyLists(GivesAnother):
    def __init__(self):
        self.losses, self.grades, self.rates, self.skipped = [], [], [], []

    def add(self, loss):
        self.losses.append(loss)
        self.grades.append(loss)
        self.rates.append(loss)
        self.skipped.append(loss)

    def state_dict(self):
        return {"a": [*self.losses], "b": [*self.grades], "c": [*self.rates], "d": [*self.skipped]}

    def load_state_dict(self, state):
        self.losses, self.grades = list(state["a"]), list(state["b"])
        self.rates, self.skipped = list(state["c"]), list(state["d"])


def test_a_large_program_is_walked_through_once(monkeypatch):
    read = Counter()
    below = lost.below

    def counting(one):
        read["objects"] += 1
        return below(one)

    monkeypatch.setattr(lost, "below", counting)
    one, program = ManyLists(), [[number] for number in range(1_000)]
    others = [*((f"outer {place}", program) for place in range(50)), ("governor", Governor(one.skipped))]
    [found] = [str(each) for each in find_parted_objects([("recorder", one)], others)]
    assert "skipped another object, but governor keeps" in found
    assert 1_000 < read["objects"] < 1_100


def test_an_object_that_closes_something_is_not_copied():
    one = WithAFile()
    assert [*find_lost_state([("kept", one)])] == []
    assert WithAFile.closed == 0


class Config:
    rate = 0.1


class Counts:
    """What each of the classes below does beside its own values, a trial must not do."""

    active: ClassVar[dict] = {}
    total = 5

    def __init__(self, target=None):
        self.n, self.target = 1.5, target

    def step(self):
        self.n += 1

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


class TellsTheTarget(Counts):
    def load_state_dict(self, state):
        self.n = state["n"]
        self.target(self.n)


class ChangesATensor(Counts):
    def load_state_dict(self, state):
        self.target[0] = state["n"]


class Registers(Counts):
    def load_state_dict(self, state):
        self.active["last"] = self


class CountsInItsClass(Counts):
    def load_state_dict(self, state):
        type(self).total = state["n"]


class Configures(Counts):
    def load_state_dict(self, state):
        setattr(Config, "rate", state["n"])  # noqa: B010 - as users write it


class WritesAFile(Counts):
    def load_state_dict(self, state):
        np.save(self.target, state["n"])


class FillsByName(Counts):
    def __init__(self, target=None):
        super().__init__(target)
        self.fast = np.array([1.0, 2.0])

    def state_dict(self):
        return {name: getattr(self, name).copy() for name in ("fast",)}

    def load_state_dict(self, state):
        for name, value in state.items():
            getattr(self, name)[:] = value


class Flushes(Counts):
    def __init__(self, target=None):
        super().__init__(target)
        self.pending, self.values = [], [0.5]

    def state_dict(self):
        self.values.extend(self.pending)
        self.pending.clear()
        return {"values": list(self.values)}


class Notifies(Counts):
    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if self.__dict__.get("target"):
            self.target(value)


class Draws1(Counts):
    def state_dict(self):
        return {"n": self.n, "seed": int(np.random.randint(100))}


class Waits(Counts):
    def state_dict(self):
        while self.n != 1.5:
            pass
        return {"n": self.n}


class HoldsAClass(Counts):
    def load_state_dict(self, state):
        self.target.rate = state["n"]


class HoldsAFunction(Counts):
    """Named as a method of a dict is."""

    def load_state_dict(self, state):
        self.update = None
        self.n = state["n"]

    def state_dict(self):
        return {"n": self.n, "more": self.update(self.n)}


class SortsByAFunction(Counts):
    def state_dict(self):
        return {"n": self.n, "order": sorted([2, 1], key=self.target)}


class ListsFunctions(Counts):
    def state_dict(self):
        return {"n": self.n, "order": sorted([2, 1], key=self.target[0])}


class MarksAFunction(Counts):
    def load_state_dict(self, state):
        self.n = state["n"]
        self.target.__self__.clear()


class Pair(NamedTuple):
    told: list

    def update(self, value):
        TOLD.append(value)


class HoldsARecord(Counts):
    def load_state_dict(self, state):
        self.n = state["n"]
        self.target.update(self.n)


class Mood(enum.Enum):
    CALM = 1

    def update(self, value):
        TOLD.append(value)


class HoldsAMember(HoldsARecord):
    pass


class RegistersByName(Counts):
    def load_state_dict(self, state):
        for name in ("active",):
            getattr(self, name)["last"] = state["n"]


class Endless(Counts):
    def state_dict(self):
        return {"n": next(number for number in itertools.count() if number > self.n and self.n == 1.5)}


TOLD: list = []


def told_of(kind):
    """What an object of the class has done to others by the trial, and whether its own values are as before."""
    told = []
    targets = {
        ChangesATensor: ms.Tensor([1.0, 2.0]),
        TellsTheTarget: told.append,
        Notifies: told.append,
        WritesAFile: "told.npy",
    }
    targets |= {
        HoldsAClass: Config,
        SortsByAFunction: told.append,
        ListsFunctions: [told.append],
        MarksAFunction: told.append,
        HoldsARecord: Pair([]),
        HoldsAMember: Mood.CALM,
    }
    one = kind(targets.get(kind))
    if kind is HoldsAFunction:
        one.update = told.append
    told.clear()
    before, numbers = {name: repr(value) for name, value in vars(one).items()}, np.random.get_state()[2]
    assert [*find_lost_state([("kept", one)])] == []
    assert [*find_parted_objects([("kept", one)], [("other", Governor(one.__dict__.get("pending")))])] == []
    assert {name: repr(value) for name, value in vars(one).items()} == before
    assert np.random.get_state()[2] == numbers
    return told + TOLD


@pytest.mark.parametrize(
    "kind",
    [
        *(HoldsAClass, HoldsAFunction, SortsByAFunction, ListsFunctions, MarksAFunction, HoldsARecord, HoldsAMember),
        *(RegistersByName, Endless),
        *(TellsTheTarget, ChangesATensor, Registers, CountsInItsClass, Configures, WritesAFile, FillsByName, Flushes),
        *(Notifies, Draws1, Waits),
    ],
)
def test_a_trial_changes_nothing_but_copies(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert told_of(kind) == []
    assert (Counts.active, Counts.total, CountsInItsClass.total, Config.rate) == ({}, 5, 5, 0.1)
    assert [*tmp_path.iterdir()] == []


class Buffer(Counts):
    told = 0

    def __init__(self, size):
        super().__init__()
        self.rows, self.lost = np.ones(size), 0.0

    def add(self):
        self.rows[0] += 1
        self.lost = self.lost * 0.5 + 1
        return self.lost

    def state_dict(self):
        return {"rows": self.rows.copy()}

    def load_state_dict(self, state):
        self.rows = state["rows"]


def test_a_large_state_is_not_tried():
    assert len([*find_lost_state([("small", Buffer(8))])]) == 1
    assert [*find_lost_state([("large", Buffer(1 << 20))])] == []
    one = Buffer(8)
    one.names = [f"row {number}" for number in range(2_000)]
    assert [*find_lost_state([("many items", one)])] == []


class Holder:
    def __init__(self, scale):
        self.scale, self.best = scale, np.full(2, np.inf)
        self.seen = {2, 3}

    def step(self, x):
        self.best = np.minimum(self.best, x)
        self.seen.add(int(x))

    def state_dict(self):
        return {"best": self.best, "seen": sorted(self.seen)}

    def load_state_dict(self, state):
        self.best, self.seen = state["best"], set(state["seen"])


class Window:
    def __init__(self):
        self.rows = np.zeros((2, 3))
        self.first, self.source = self.rows[0], random.SystemRandom()

    def step(self, x):
        self.first[:] = x
        self.rows[1] = self.rows[0] * self.source.random()

    def state_dict(self):
        return {"rows": self.rows.copy()}

    def load_state_dict(self, state):
        self.rows[:] = state["rows"]


def test_what_another_object_stores_and_values_without_digits_are_not_named():
    scale = Scale()
    holder = Holder(scale)
    assert [*find_lost_state([("holder", holder), ("scale", scale)], given=[holder, scale])] == []
    assert "scale.scale: its code changes this" in str(next(find_lost_state([("holder", holder)], given=[holder])))
    assert [*find_lost_state([("window", Window())])] == []


class Leader:
    def __init__(self):
        self.level = 1.0

    def add(self, value):
        self.level = 0.8 * self.level + 0.2 * value

    def state_dict(self):
        return {"level": self.level}

    def load_state_dict(self, state):
        self.level = state["level"]


class Follower:
    def __init__(self, leader):
        self.leader, self.calls = leader, 0
        self.look_up()

    def look_up(self):
        self.limit = 0.6 * self.leader.level

    def factor(self, norm):
        self.calls += 1
        if self.calls % 6 == 0:
            self.look_up()
        return min(1.0, self.limit / norm)

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]
        self.look_up()


class FollowerAtOnce(Follower):
    def factor(self, norm):
        self.calls += 1
        self.look_up()
        return min(1.0, self.limit / norm)


class Averaging:
    def __init__(self):
        self.total, self.count, self.mean = 0.0, 0, 0.0

    def add(self, value):
        self.total += value
        self.count += 1
        self.mean = self.total / self.count

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total, self.count = state["total"], state["count"]
        self.mean = self.total / self.count if self.count else 0.0


@pytest.mark.parametrize(("kind", "named"), [(Follower, ["limit"]), (FollowerAtOnce, [])])
def test_what_a_load_takes_from_another_object_is_named_once_it_is_another_value(kind, named):
    leader = Leader()
    follower = kind(leader)
    assert [*find_lost_state([("follower", follower)], given=[follower, leader])] == []
    assert [*find_remade_otherwise([("follower", follower)])] == []
    for value in (3.0, 5.0):
        leader.add(value)
        follower.factor(2.0)
    assert [one.why.partition(":")[0] for one in find_remade_otherwise([("follower", follower)])] == named


def test_what_follows_from_the_state_is_made_as_it_was():
    averaging = Averaging()
    for value in (3.0, 5.0, 0.1):
        averaging.add(value)
        assert [*find_remade_otherwise([("averaging", averaging)])] == []
