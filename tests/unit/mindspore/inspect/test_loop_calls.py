"""What the calls and operators of a loop change, end or run is read."""

from __future__ import annotations

import bisect
import collections
import contextlib
import functools
import itertools
import operator
import random
import secrets
import sys
import threading
import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from test_loops import Training


def counts_by_a_ufunc(cell, batches, rate, restore):
    counts = np.ones(3)
    restore()
    for x, y in batches:
        np.add.at(counts, y, 1)
        cell(x * counts.sum(), y)


def sorted_losses(cell, batches, rate, restore):
    losses = []
    restore()
    for x, y in batches:
        loss = cell(x if not losses else x * losses[len(losses) // 2], y)
        bisect.insort(losses, float(loss))


def copied_into(cell, batches, rate, restore):
    last = np.zeros(3)
    restore()
    for x, y in batches:
        cell(x + last, y)
        np.copyto(last, x)


def given_as_out(cell, batches, rate, restore):
    total = np.zeros(3)
    restore()
    for x, y in batches:
        cell(x + total, y)
        np.add(total, x, out=total)


def put_along_an_axis(cell, batches, rate, restore):
    bias = np.zeros(3)
    restore()
    for x, y in batches:
        mask = np.zeros(x.shape)
        np.put_along_axis(mask, np.argsort(x.asnumpy() + bias, axis=1)[:, :2], 1.0, axis=1)
        bias += 0.1 * np.sign(mask.mean() - mask.mean(0))
        cell(x * ms.Tensor(mask), y)


def copied_where(cell, batches, rate, restore):
    newest = np.zeros(3)
    restore()
    for x, y in batches:
        np.copyto(newest, x.asnumpy()[0], where=x.asnumpy()[0] > 1)
        cell(x + ms.Tensor(newest), y)


def added_where(cell, batches, rate, restore):
    total = np.zeros(3)
    restore()
    for x, y in batches:
        np.add(x.asnumpy()[0], 1, out=total, where=x.asnumpy()[0] > 1)
        cell(x + ms.Tensor(total), y)


def added_by_an_operator(cell, batches, rate, restore):
    seen = []
    restore()
    for x, y in batches:
        cell(x * len(seen), y)
        operator.iadd(seen, [1])


class Isolated:
    """Keeps a state of its own for the global generator."""

    def __init__(self):
        self.inner = np.random.RandomState(3).get_state()

    @contextlib.contextmanager
    def active(self):
        outer = np.random.get_state()
        np.random.set_state(self.inner)
        try:
            yield
        finally:
            self.inner = np.random.get_state()
            np.random.set_state(outer)


def by_a_state_of_the_generator(cell, batches, rate, restore):
    isolated = Isolated()
    restore()
    for x, y in batches:
        with isolated.active():
            noise = np.random.standard_normal(3)
        cell(x + noise, y)


def filled(cell, batches, rate, restore):
    average = np.ones(1)
    restore()
    for x, y in batches:
        average.fill(0.9 * average[0] + float(cell(x * average[0], y)))


def shuffled(cell, batches, rate, restore):
    order = [0, 1, 2]
    restore()
    for x, y in batches:
        random.shuffle(order)
        cell(x[order], y)


def tensor_in_place(cell, batches, rate, restore):
    scale = ms.Tensor(1.0)
    restore()
    for x, y in batches:
        cell(x * scale, y)
        scale.mul_(0.9)


def weights_loaded_at_a_count(cell, batches, rate, restore):
    at, kept = 0, {}
    restore()
    for x, y in batches:
        cell(x, y)
        at += 1  # noqa: SIM113 - a counter, as loops have them
        if at == 13:
            ms.load_param_into_net(cell.network, kept)


def script_left(cell, batches, rate, restore):
    bad = 0
    restore()
    for x, y in batches:
        bad = bad + 1 if float(cell(x, y)) > 0.1 else 0
        if bad == 14:
            sys.exit(0)


def through_map(cell, batches, rate, restore):
    best = 9.0

    def one(batch):
        nonlocal best
        loss = cell(batch[0] * best, batch[1])
        best = min(best, float(loss))

    restore()
    list(map(one, batches))


def through_reduce(cell, batches, rate, restore):
    def step(mean, batch):
        return 0.9 * mean + float(cell(batch[0] * mean, batch[1]))

    restore()
    functools.reduce(step, batches, 1.0)


def through_accumulate(cell, batches, rate, restore):
    def step(history, batch):
        history["n"] += 1
        cell(batch[0] / history["n"], batch[1])
        return history

    restore()
    for history in itertools.accumulate(batches, func=step, initial={"n": 0}):
        print(history)


def through_starmap(cell, batches, rate, restore):
    n = [0]

    def step(x, y):
        n[0] += 1
        return float(cell(x / n[0], y))

    restore()
    print(min(itertools.starmap(step, batches)))


def by_a_handler_of_events(cell, batches, rate, restore):
    handlers, seen = collections.defaultdict(list), 0

    def emit(event, *arguments):
        for one in handlers[event]:
            one(*arguments)

    def decay(holder):
        nonlocal seen
        seen += 1
        holder["x"] = holder["x"] / seen

    handlers["batch"].append(decay)
    restore()
    for x, y in batches:
        holder = {"x": x}
        emit("batch", holder)
        cell(holder["x"], y)


class Curriculum:
    def __init__(self):
        self.level = 1

    def __iter__(self):
        self.level += 1
        yield from range(self.level)


def by_an_iterator_of_a_range(cell, batches, rate, restore):
    levels = Curriculum()
    restore()
    for x, y in batches:
        for one in levels:
            x = x * one  # noqa: PLW2901 - as people write it
        cell(x, y)


class Arm:
    def __init__(self, rate):
        self.rate, self.wins = rate, 1

    def sample(self):
        return self.rate * self.wins


def chosen_by_a_key(cell, batches, rate, restore):
    arms = [Arm(0.1), Arm(0.2)]
    restore()
    for x, y in batches:
        arm = max(arms, key=Arm.sample)
        cell(x * arm.rate, y)
        arm.wins += 1


def summed_by_reduce(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        scale = functools.reduce(lambda a, b: a * b, x.shape, 1) + [*itertools.accumulate((1, 2))][-1]
        cell(x / scale, y)


def weighed_by_reduce_from_the_checkpoint(cell, batches, rate, restore):
    def step(number, batch):
        cell(batch[0] / (number + 1), batch[1])
        return number + 1

    point = restore()
    functools.reduce(step, batches, point.batches_delivered)


def through_a_comprehension(cell, batches, rate, restore):
    best = [9.0]

    def one(x, y):
        loss = cell(x * best[-1], y)
        best.append(float(loss))
        return loss

    restore()
    _ = [one(x, y) for x, y in batches]


def by_a_thread(cell, batches, rate, restore):
    latest = {"scale": 1.0}

    def measure():
        latest["scale"] *= 0.9

    restore()
    for x, y in batches:
        cell(x * latest["scale"], y)
        thread = threading.Thread(target=measure)
        thread.start()
        thread.join()


class Replay:
    def __init__(self):
        self._rows = []

    def add(self, one):
        self._rows.append(one)
        del self._rows[:-3]

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, index):
        return self._rows[index]


def read_by_its_length(cell, batches, rate, restore):
    replay = Replay()
    restore()
    for x, y in batches:
        cell(x if len(replay) == 0 else 0.5 * x, y)
        replay.add(x)


def read_by_its_index(cell, batches, rate, restore):
    replay = Replay()
    replay.add(0.0)
    restore()
    for x, y in batches:
        cell(x + replay[0], y)
        replay.add(x)


class Average:
    def __init__(self):
        self._value = 1.0

    def update(self, value):
        self._value = 0.9 * self._value + 0.1 * value

    def __float__(self):
        return self._value

    def __lt__(self, other):
        return self._value < other

    def __enter__(self):
        self._value *= 0.9
        return self

    def __exit__(self, *error):
        pass


def read_as_a_float(cell, batches, rate, restore):
    average = Average()
    restore()
    for x, y in batches:
        average.update(float(cell(x * float(average), y)))


def compared(cell, batches, rate, restore):
    average = Average()
    restore()
    for x, y in batches:
        average.update(float(cell(x, y)))
        if average < 0.5:
            break


def entered(cell, batches, rate, restore):
    average = Average()
    restore()
    for x, y in batches:
        with average:
            cell(x * float(average), y)


def decaying():
    calls = 0

    def decay(context):
        nonlocal calls
        calls += 1
        context.x = context.x * 0.95**calls

    return decay


def hook_changes_a_context(cell, batches, rate, restore):
    hooks = [decaying()]
    restore()
    for x, y in batches:
        context = types.SimpleNamespace(x=x)
        for hook in hooks:
            hook(context)
        cell(context.x, y)


def hook_changes_nothing_of_it(cell, batches, rate, restore):
    hooks = [decaying()]
    restore()
    for x, y in batches:
        context = types.SimpleNamespace(x=x)
        for hook in hooks:
            hook(context)
        cell(x, y)


@pytest.mark.parametrize(
    ("loop", "where"),
    [
        (counts_by_a_ufunc, "counts"),
        (sorted_losses, "losses"),
        (copied_into, "last"),
        (given_as_out, "total"),
        (put_along_an_axis, "bias"),
        (by_a_state_of_the_generator, "isolated (Isolated)"),
        (copied_where, "newest"),
        (added_where, "total"),
        (added_by_an_operator, "seen"),
        (filled, "average"),
        (shuffled, "order"),
        (tensor_in_place, "scale"),
        (weights_loaded_at_a_count, "at"),
        (script_left, "bad"),
        (through_map, "best"),
        (through_a_comprehension, "best"),
        (through_reduce, "functools.reduce"),
        (through_accumulate, "itertools.accumulate"),
        (through_starmap, "n"),
        (by_a_handler_of_events, "seen"),
        (chosen_by_a_key, "self (Arm)"),
        (by_an_iterator_of_a_range, "levels (Curriculum)"),
        (by_a_thread, "latest"),
        (read_by_its_length, "replay (Replay)"),
        (read_by_its_index, "replay (Replay)"),
        (read_as_a_float, "average (Average)"),
        (compared, "average (Average)"),
        (entered, "average (Average)"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_a_call_does_is_read(loop, where):
    (found,) = Training().found(loop)
    assert found.where == f"{loop.__name__}(): {where}"


def test_closure_that_changes_a_context_object_is_named():
    (found,) = Training().found(hook_changes_a_context)
    assert "calls" in found.where
    assert Training().found(hook_changes_nothing_of_it) == []


def log_of_losses(cell, batches, rate, restore):
    losses, total = [], np.zeros(1)
    restore()
    for x, y in batches:
        bisect.insort(losses, float(cell(x, y)))
        np.add(total, losses[-1], out=total)
        print(losses[0], total)


def by_a_state_of_now(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        outer = np.random.get_state()
        np.random.seed(3)
        noise = np.random.standard_normal(3)
        np.random.set_state(outer)
        cell(x + noise, y)


def put_back_now_and_then(cell, batches, rate, restore):
    shown = 0
    restore()
    for x, y in batches:
        cell(x, y)
        shown += 1  # noqa: SIM113 - what is tested
        if shown % 4 == 0:
            outer = np.random.get_state()
            np.random.standard_normal(3)
            np.random.set_state(outer)


def written_whole(cell, batches, rate, restore):
    newest, total = np.zeros(3), np.zeros(3)
    restore()
    for x, y in batches:
        np.copyto(newest, x.asnumpy()[0])
        np.add(newest, 1, out=total)
        cell(x + ms.Tensor(total), y)


def computed_in_a_comprehension(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        parts = [one * 2 for one in x]
        total = sum(float(part) for part in parts)
        cell(ops.stack(parts) * total, y)


def sorted_by_a_key(cell, batches, rate, restore):
    names = [one.name for one in cell.get_parameters()]

    def last_letter(name):
        return name[-1]

    restore()
    for x, y in batches:
        cell(x * len(sorted(names, key=last_letter)), y)


def watched_by_a_thread(cell, batches, rate, restore):
    seen = []

    def show():
        print(len(seen))

    restore()
    for x, y in batches:
        seen.append(float(cell(x, y)))
        threading.Thread(target=show).start()


def options_in_two_dicts(cell, batches, rate, restore):
    first, second = {}, {}
    restore()
    for x, y in batches:
        cell(x, y, **first, **second)
        print(**first, **second)


def average_that_is_shown(cell, batches, rate, restore):
    average = Average()
    restore()
    for x, y in batches:
        average.update(float(cell(x, y)))
        if average < 0.5:
            print(float(average))


@pytest.mark.parametrize(
    "loop",
    [
        log_of_losses,
        by_a_state_of_now,
        put_back_now_and_then,
        written_whole,
        computed_in_a_comprehension,
        sorted_by_a_key,
        watched_by_a_thread,
        average_that_is_shown,
        summed_by_reduce,
        weighed_by_reduce_from_the_checkpoint,
        options_in_two_dicts,
    ],
    ids=lambda one: one.__name__,
)
def test_calls_that_steer_nothing_are_not_named(loop):
    assert Training().found(loop) == []


def masked_by_an_operator(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * ops.bernoulli(ops.ones_like(x), 0.7), y)


def dropped_by_a_cell_of_the_loop(cell, batches, rate, restore):
    drop = nn.Dropout(p=0.3)
    restore()
    for x, y in batches:
        cell(drop(x), y)


def generator_for_each_batch(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x + np.random.default_rng().normal(), y)


def generator_set_to_a_state(cell, batches, rate, restore):
    states = restore()
    for x, y in batches:
        rng = random.Random()
        rng.setstate(states[0])
        cell(x + rng.gauss(0, 1), y)


def generator_of_numpy_set_to_a_state(cell, batches, rate, restore):
    states = restore()
    for x, y in batches:
        rng = np.random.default_rng()
        rng.bit_generator.state = states[0]
        cell(x + rng.normal(), y)


def generator_of_numpy_set_to_a_state_once(cell, batches, rate, restore):
    states = restore()
    for x, y in batches:
        rng = np.random.default_rng()
        if states:
            rng.bit_generator.state = states.pop()
        cell(x + rng.normal(), y)


def generator_seeded_by_itself(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        rng = random.Random()
        rng.seed()
        cell(x + rng.gauss(0, 1), y)


def generator_set_to_a_state_once(cell, batches, rate, restore):
    states = restore()
    for x, y in batches:
        rng = random.Random()
        if states:
            rng.setstate(states.pop())
        cell(x + rng.gauss(0, 1), y)


def generator_seeded_with_none(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        rng = random.Random()
        rng.seed(None)
        cell(x + rng.gauss(0, 1), y)


def drawn_from_the_system(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * secrets.randbelow(5), y)


def drawn_by_a_generator_of_the_system(cell, batches, rate, restore):
    rng = random.SystemRandom()
    restore()
    for x, y in batches:
        cell(x * rng.random(), y)


def hashed_texts_of_batches(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x, hash(y) % 7)


def hashed_text_with_a_number(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * (hash(("noise", 5)) % 7), y)


def hashed_numbers(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * (hash((3, 5)) % 7), y)


def hashed_number_of_a_batch(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x, hash(int(y)) % 7)


@pytest.mark.parametrize("loop", [hashed_texts_of_batches, hashed_text_with_a_number])
def test_hash_of_texts_is_named_unless_its_seed_is_set(loop, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    (found,) = Training().found(loop)
    assert found.where == f"{loop.__name__}(): hash() (of texts)"
    assert "another number in each process" in found.why
    for other in (hashed_numbers, hashed_number_of_a_batch):
        assert Training().found(other) == []
    monkeypatch.setenv("PYTHONHASHSEED", "3")
    assert Training().found(loop) == []


@pytest.mark.parametrize("loop", [generator_set_to_a_state, generator_of_numpy_set_to_a_state])
def test_generator_set_to_a_state_is_not_named(loop):
    assert Training().found(loop) == []


@pytest.mark.parametrize(
    ("loop", "where"),
    [
        (generator_set_to_a_state_once, "random.Random() (without a seed)"),
        (generator_seeded_with_none, "random.Random() (without a seed)"),
        (generator_seeded_by_itself, "random.Random() (without a seed)"),
        (masked_by_an_operator, "ops.bernoulli() (ops.bernoulli)"),
        (dropped_by_a_cell_of_the_loop, "drop() (nn.Dropout)"),
        (drawn_from_the_system, "secrets.randbelow() (of the operating system)"),
        (drawn_by_a_generator_of_the_system, "rng.random() (of the operating system)"),
        (generator_for_each_batch, "np.random.default_rng() (without a seed)"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_a_loop_draws_by_itself_is_named(loop, where):
    (found,) = Training().found(loop)
    assert found.where == f"{loop.__name__}(): {where}"
    assert "no checkpoint can restore what it draws" in found.why


def drawn_and_shown(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        print(ops.bernoulli(x))
        cell(x, y)


def drawn_where_checkpoints_reach(cell, batches, rate, restore):
    drop = nn.Dropout(p=0.0)
    restore()
    for x, y in batches:
        cell(drop(x) * np.random.rand() + ops.standard_normal(x.shape), y)


def seeded_for_each_batch(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x + np.random.default_rng(7).normal(), y)


@pytest.mark.parametrize(
    "loop", [drawn_and_shown, drawn_where_checkpoints_reach, seeded_for_each_batch], ids=lambda one: one.__name__
)
def test_draws_that_come_back_are_not_named(loop):
    assert Training().found(loop) == []


class Adapter(nn.Cell):
    def __init__(self):
        super().__init__()
        self.active, self.scale, self.shown = False, 1.0, 0
        self.register_buffer("mean", ms.Tensor(0.0))

    def enable(self):
        self.active = True

    def factor(self):
        return 2 if self.active else self.scale

    def construct(self, x):
        return x * self.factor()


def enabled_once(cell, batches, rate, restore, adapter):
    point = restore()
    for at, (x, y) in enumerate(batches, point):
        if at == 6:
            adapter.enable()
        cell(x, y)


def scaled_again_and_again(cell, batches, rate, restore, adapter):
    restore()
    for x, y in batches:
        adapter.scale *= 0.9
        cell(x, y)


@pytest.mark.parametrize(
    ("loop", "name"), [(enabled_once, "active"), (scaled_again_and_again, "scale")], ids=["enabled_once", "scaled"]
)
def test_attribute_of_a_cell_that_a_loop_changes_is_named(loop, name):
    training, adapter = Training(), Adapter()
    training.cell.network.adapter = adapter
    (found,) = training.found(lambda *given: loop(*given, adapter))
    assert found.where == f"{loop.__name__}(): adapter (Adapter)"
    assert f"carries {name}" in found.why


def given_anew_in_each_iteration(cell, batches, rate, restore, adapter):
    restore()
    for x, y in batches:
        adapter.scale = float(x.mean())
        cell(x, y)


def attribute_that_nothing_reads(cell, batches, rate, restore, adapter):
    restore()
    for x, y in batches:
        adapter.shown += 1
        cell(x, y)
        print(adapter.shown)


def buffer_of_a_cell(cell, batches, rate, restore, adapter):
    restore()
    for x, y in batches:
        adapter.mean = adapter.mean * 0.9 + x.mean()
        cell(x - adapter.mean, y)


def training_flag(cell, batches, rate, restore, adapter):
    restore()
    for x, y in batches:
        was = adapter.training
        adapter.set_train(False)
        cell(x, y)
        adapter.set_train(was)


@pytest.mark.parametrize(
    "loop",
    [given_anew_in_each_iteration, attribute_that_nothing_reads, buffer_of_a_cell, training_flag],
    ids=lambda one: one.__name__,
)
def test_what_steers_no_cell_is_not_named(loop):
    training, adapter = Training(), Adapter()
    training.cell.network.adapter = adapter
    assert training.found(lambda *given: loop(*given, adapter)) == []


class Unbound:
    """As Cython's functions are since version 3.1: without ``__self__`` if they are not bound."""

    def __call__(self, x):
        return x


Unbound.__name__ = "cython_function_or_method"
unbound = Unbound()


def compiled_function(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(unbound(x), y)


def test_compiled_functions_do_not_end_the_search():
    assert Training().found(compiled_function) == []


class Averaging:
    """Is given by name; every fourth step a comprehension names the weights by a variable of its own."""

    def __init__(self, weights):
        self.weights, self.start, self.inner = weights, [one.asnumpy().copy() for one in weights], 0

    def step(self):
        self.inner += 1
        if self.inner == 4:
            self.inner = 0
            self.start = [
                begin + 0.5 * (w.asnumpy() - begin) for begin, w in zip(self.start, self.weights, strict=True)
            ]
            for weight, begin in zip(self.weights, self.start, strict=True):
                ops.assign(weight, ms.Tensor(begin))

    def state_dict(self):
        return {"start": self.start, "inner": self.inner}

    def load_state_dict(self, state):
        self.start, self.inner = state["start"], state["inner"]


def test_variable_of_a_comprehension_is_not_carried():
    averaging = Averaging([ms.Parameter(ms.Tensor([1.0]), name="w")])

    def loop(cell, batches, rate, restore):
        restore()
        for x, y in batches:
            cell(x, y)
            averaging.step()

    assert Training(averaging=averaging).found(loop) == []
