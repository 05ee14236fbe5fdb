"""What a loop of one's own carries in plain variables is named before training, if training depends on it."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import linecache
import logging
import random
import time
import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops
from support.training import accumulation_cell, begin_process

import ckptkit as ck
from ckptkit.mindspore.state.holders import stateful_of
from ckptkit.mindspore.state.manager import StateManager

log = logging.getLogger(__name__)


class RestoredError(Exception):
    """Ends a loop where it restores, with what was found."""


class Training:
    """What a loop has, but for its own variables."""

    def __init__(self, **stateful):
        begin_process()
        self.cell = accumulation_cell()
        self.rate = self.cell.optimizer.learning_rate
        self.batches = ck.data.resumable([(ms.Tensor(0.0), ms.Tensor(0.0))], 2)
        self.manager = StateManager(self.cell, self.batches, **stateful)

    def restore(self):
        raise RestoredError(self.manager.findings())

    def found(self, loop):
        with pytest.raises(RestoredError) as raised:
            loop(self.cell, self.batches, self.rate, self.restore)
        return list(raised.value.args[0])


def counter(cell, batches, rate, restore):
    since = 0
    restore()
    for x, y in batches:
        cell(x, y)
        since += 1
        if since == 5:
            since = 0
            rate.set_data(rate * 0.5)


def patience(cell, batches, rate, restore):
    restore()
    best, bad = float("inf"), 0
    for x, y in batches:
        loss = float(cell(x, y))
        bad = 0 if loss < best else bad + 1
        best = min(best, loss)
        if bad > 3:
            break


def hidden_state(cell, batches, rate, restore):
    hidden = ops.zeros((2, 3))
    restore()
    for x, _ in batches:
        loss, hidden = cell(x, hidden)
        print(loss)


def last_losses(cell, batches, rate, restore):
    losses = []
    restore()
    for x, y in batches:
        losses.append(float(cell(x, y)))
        if np.mean(losses[-5:]) > 2.0:
            rate.set_data(rate * 0.5)


def closure_that_counts(cell, batches, rate, restore):
    calls = 0

    def step(x, y):
        nonlocal calls
        calls += 1
        return cell(x * calls, y)

    restore()
    for x, y in batches:
        step(x, y)


def number_of_the_batch(cell, batches, rate, restore):
    restore()
    for at, (x, y) in enumerate(batches):
        if at % 3 == 0:
            cell(x, y)


def loop_until_a_count(cell, batches, rate, restore):
    at = 0
    restore()
    for x, y in batches:
        cell(x, y)
        at += 1  # noqa: SIM113 - a counter, as loops have them
        if at == 100:
            return


def generator(cell, batches, rate, restore):
    rng = np.random.default_rng(0)
    restore()
    for x, y in batches:
        cell(x + rng.normal(), y)


def second_loader(cell, batches, rate, restore):
    other = itertools.cycle([1.0, 2.0])
    restore()
    for x, y in batches:
        cell(x + next(other), y)


class Schedule:
    """Counts in an attribute."""

    def __init__(self, rate):
        self.rate, self.calls, self.shown = rate, 0, 0

    def advance(self):
        self.calls += 1
        self.shown = self.calls
        if self.calls % 3 == 0:
            self.rate.set_data(self.rate * 0.5)


def object_that_counts(cell, batches, rate, restore):
    schedule = Schedule(rate)
    restore()
    for x, y in batches:
        cell(x, y)
        schedule.advance()


class Annealing:
    steps = 0

    @classmethod
    def factor(cls):
        cls.steps += 1
        return 1 / cls.steps


def counter_of_a_class(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * Annealing.factor(), y)


class Trainer:
    """A loop in one method, called from another one."""

    def __init__(self, *parts):
        self.cell, self.batches, self.rate, self.restore = parts
        self.bad, self.meter = 0, Meter()

    def run(self):
        self.begin()
        self.train(self.batches)

    def begin(self):
        self.restore()

    def train(self, batches):
        for x, y in batches:
            self.meter.update(float(self.cell(x, y)))
            self.bad += 1
            if self.bad > 3:
                break


def trainer(*parts):
    Trainer(*parts).run()


class Hook:
    def __init__(self, rate):
        self.rate, self.last = rate, 0.0

    def after(self, loss):
        if loss > self.last:
            self.rate.set_data(self.rate * 0.5)
        self.last = loss


def hooks(cell, batches, rate, restore):
    hooks = [Meter(), Hook(rate)]
    restore()
    for x, y in batches:
        loss = float(cell(x, y))
        for hook in hooks:
            hook.after(loss)


def attribute_of_the_network(cell, batches, rate, restore):
    since = 0
    restore()
    for x, y in batches:
        cell(x, y)
        since += 1  # noqa: SIM113 - a counter, as loops have them
        cell.network.width = since


class Warmup:
    def __init__(self):
        self.calls = 0

    @property
    def factor(self):
        return min(1.0, self.calls / 10)

    def advance(self):
        self.calls += 1


def property_of_an_object(cell, batches, rate, restore):
    warmup = Warmup()
    restore()
    for x, y in batches:
        cell(x * warmup.factor, y)
        warmup.advance()


def smallest_losses(cell, batches, rate, restore):
    smallest = []
    restore()
    for x, y in batches:
        heapq.heappush(smallest, float(cell(x, y)))
        if smallest[0] > 2.0:
            rate.set_data(rate * 0.5)


def annotated_in_the_loop(cell, batches, rate, restore):
    since = 0
    restore()
    for x, y in batches:
        since: int
        cell(x * since, y)
        since += 1  # noqa: SIM113 - a counter, as loops have them


def seeds_by_epochs(cell, batches, rate, restore):
    epoch = None
    restore()
    for x, y in batches:
        if epoch != batches.epoch:
            epoch = batches.epoch
            np.random.seed(epoch)
        cell(x + np.random.normal(), y)


def best_in_a_file(cell, batches, rate, restore):
    best = float("inf")
    restore()
    for x, y in batches:
        loss = float(cell(x, y))
        if loss < best:
            best = loss
            ms.save_checkpoint(cell, "best.ckpt")


@pytest.mark.parametrize(
    ("loop", "where"),
    [
        (counter, "counter(): since"),
        (patience, "patience(): bad"),
        (hidden_state, "hidden_state(): hidden"),
        (last_losses, "last_losses(): losses"),
        (closure_that_counts, "closure_that_counts(): calls"),
        (number_of_the_batch, "number_of_the_batch(): enumerate()"),
        (loop_until_a_count, "loop_until_a_count(): at"),
        (generator, "generator(): rng (Generator)"),
        (second_loader, "second_loader(): other (cycle)"),
        (object_that_counts, "object_that_counts(): schedule (Schedule)"),
        (trainer, "begin(): self (Trainer)"),
        (hooks, "hooks(): hooks[1] (Hook)"),
        (counter_of_a_class, "counter_of_a_class(): Annealing (type)"),
        (attribute_of_the_network, "attribute_of_the_network(): since"),
        (property_of_an_object, "property_of_an_object(): warmup (Warmup)"),
        (smallest_losses, "smallest_losses(): smallest"),
        (annotated_in_the_loop, "annotated_in_the_loop(): since"),
        (seeds_by_epochs, "seeds_by_epochs(): epoch"),
        (best_in_a_file, "best_in_a_file(): best"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_a_loop_carries_is_named(loop, where):
    found = Training().found(loop)
    assert where in [one.where for one in found]
    assert not any(one.certain or "self=" in one.fix for one in found)


def test_only_what_steers_is_named():
    (schedule,) = Training().found(object_that_counts)
    assert "carries calls from one batch" in schedule.why
    assert 'StateManager(..., schedule=ckptkit.attributes(it, "calls"))' in schedule.fix


class Meter:
    def __init__(self):
        self.sum, self.count, self.average = 0.0, 0, 0.0

    def update(self, value):
        self.sum += value
        self.count += 1
        self.average = self.sum / self.count

    def after(self, value):
        self.update(value)
        print(self.average)


def shown_only(cell, batches, rate, restore):
    meter, total, history, begun = Meter(), 0.0, [], time.time()
    restore()
    for at, (x, y) in enumerate(batches):
        loss = float(cell(x, y))
        meter.update(loss)
        total += loss
        history.append(loss)
        if at % 10 == 0:
            log.info("%s %s %s %s", total / (at + 1), meter.average, history[-3:], time.time() - begun)
            begun = time.time()


def begun_from_the_checkpoint(cell, batches, rate, restore):
    point = restore()
    at = point.batches_delivered
    for x, y in batches:
        cell(x * at, y)
        at += 1
        if at == 100:
            break


def made_anew_in_each_iteration(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        total = 0.0
        for weight in cell.trainable_params():
            total += float((weight**2).sum())
        if total > 5.0:
            rate.set_data(rate * 0.5)
        cell(x * total, y)


def global_generators(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x + random.random() + np.random.normal(), y)


def saves_at_the_ends_of_epochs(cell, batches, rate, restore):
    epoch = None
    restore()
    for x, y in batches:
        cell(x, y)
        if batches.epoch != epoch:
            epoch = batches.epoch
            batches.manager.save()


def parameter_in_a_variable(cell, batches, rate, restore):
    kept = cell.network.out.weight
    restore()
    for x, y in batches:
        cell(x, y)
        kept = ops.assign(kept, kept * 0.5)


def evaluates_sometimes(cell, batches, rate, restore):
    losses = []
    restore()
    for at, (x, y) in enumerate(batches):
        losses.append(cell(x, y))
        if at % 10 == 0:
            cell.network.set_train(False)
            print(at, np.mean([cell.network(z, t).asnumpy() for z, t in [(x, y)]]), losses[-1])
            cell.network.set_train()


def asked_for_its_parameters(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        cell(x, y)
        seen += 1  # noqa: SIM113 - a counter, as loops have them
        print(len(cell.trainable_params(seen > 3)))


@pytest.mark.parametrize(
    "loop",
    [
        asked_for_its_parameters,
        evaluates_sometimes,
        shown_only,
        begun_from_the_checkpoint,
        made_anew_in_each_iteration,
        global_generators,
        parameter_in_a_variable,
        saves_at_the_ends_of_epochs,
    ],
    ids=lambda one: one.__name__,
)
def test_what_steers_nothing_is_not_named(loop):
    assert Training().found(loop) == []


def test_code_whose_file_was_edited_is_not_read(monkeypatch):
    module = {"__name__": "users"}
    text = "def loop(cell, batches, rate, restore):\n    restore()\n"
    exec(compile(text, "users.py", "exec"), module)  # noqa: S102
    monkeypatch.setitem(linecache.cache, "users.py", (1, None, ["def loop(\n"], "users.py"))
    assert Training().found(module["loop"]) == []


def test_what_is_given_by_name_is_not_named():
    kept, rng = types.SimpleNamespace(since=0), np.random.default_rng(0)

    def loop(cell, batches, rate, restore):
        restore()
        for x, y in batches:
            kept.since += 1
            cell(x * kept.since + rng.normal(), y)

    assert len(Training().found(loop)) == 2
    assert Training(kept=ck.attributes(kept, "since"), rng=rng).found(loop) == []


@dataclasses.dataclass(frozen=True)
class Trend:
    level: float = 1.0

    def after(self, loss):
        return dataclasses.replace(self, level=self.level * 0.5 + loss)

    def itself(self):
        return self

    def state_dict(self):
        return {"level": self.level}

    def load_state_dict(self, state):
        object.__setattr__(self, "level", state["level"])


@pytest.mark.parametrize("goes_on_with_it", [True, False])
def test_a_successor_of_the_object_that_is_given_by_name_is_named(goes_on_with_it):
    kept = types.SimpleNamespace(trend=Trend())

    def with_itself(cell, batches, rate, restore):
        restore()
        for x, y in batches:
            cell(x * kept.trend.level, y)
            kept.trend = kept.trend.itself()

    def with_a_successor(cell, batches, rate, restore):
        restore()
        for x, y in batches:
            loss = cell(x * kept.trend.level, y)
            kept.trend = kept.trend.after(float(loss))

    found = Training(trend=kept.trend).found(with_itself if goes_on_with_it else with_a_successor)
    assert ["carries trend" in one.why for one in found] == ([] if goes_on_with_it else [True])


class Kept:
    """Is given by name, and told how far the loop is."""

    def __init__(self):
        self.level = 0

    def tell(self, level):
        self.level = level


def test_what_given_objects_are_told_is_named():
    kept = Kept()

    def by_a_call(cell, batches, rate, restore):
        seen = 0
        restore()
        for x, y in batches:
            cell(x, y)
            seen += 1  # noqa: SIM113 - what is to be read
            kept.tell(seen)

    def by_an_attribute(cell, batches, rate, restore):
        seen = 0
        restore()
        for x, y in batches:
            cell(x, y)
            seen += 1  # noqa: SIM113 - what is to be read
            kept.level = seen

    for loop in (by_a_call, by_an_attribute):
        (found,) = Training(kept=ck.attributes(kept, "level")).found(loop)
        assert found.where == f"{loop.__name__}(): seen"


def test_when_a_given_generator_draws_is_named():
    rng = np.random.default_rng(0)

    def loop(cell, batches, rate, restore):
        seen = 0
        restore()
        for x, y in batches:
            cell(x, y)
            seen += 1  # noqa: SIM113 - what is to be read
            if seen % 2:
                rng.random()

    (found,) = Training(rng=rng).found(loop)
    assert found.where == "loop(): seen"


def test_dict_of_hooks_is_read():
    def loop(cell, batches, rate, restore):
        hooks = {"rate": Hook(rate)}
        restore()
        for x, y in batches:
            hooks["rate"].after(float(cell(x, y)))

    assert "last" in "".join(one.why for one in Training().found(loop))


def test_list_in_a_given_object_is_not_named():
    kept = types.SimpleNamespace(seen=[1.0])
    seen = kept.seen

    def loop(cell, batches, rate, restore):
        restore()
        for x, y in batches:
            cell(x * len(seen), y)
            seen.append(1.0)

    assert len(Training().found(loop)) == 1
    assert Training(kept=ck.attributes(kept, "seen")).found(loop) == []


@pytest.mark.parametrize(
    ("generator", "draw"),
    [
        (np.random.default_rng(3), lambda one: one.standard_normal(3).tolist()),
        (np.random.RandomState(3), lambda one: one.standard_normal(3).tolist()),
        (random.Random(3), lambda one: [one.gauss(0, 1) for _ in range(3)]),
    ],
    ids=["Generator", "RandomState", "Random"],
)
def test_generators_given_by_name_go_on(generator, draw):
    draw(generator)
    holder = stateful_of("rng", generator)
    state = holder.state_dict()
    drawn = draw(generator)
    holder.load_state_dict(state)
    assert draw(generator) == drawn
