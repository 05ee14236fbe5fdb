"""Values that a script draws without a seed are others after a restart: that is named before the resumed training."""

from __future__ import annotations

import collections
import enum
import functools
import subprocess
import sys
import time
import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.train import Model
from support.training import adam, begin_process, checkpoints, pipeline

import ckptkit as ck
from ckptkit.errors import ResumeError
from ckptkit.mindspore.inspect import differ, is_single, start_values_of

SAID = "not the values with which the run began"


class Masked(nn.Cell):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask
        self.out = nn.Dense(6, 3)

    def construct(self, x, y):
        return ops.square(self.out(x * self.mask) - y).mean()


def drawn(seed):
    return ms.Tensor(np.random.default_rng(seed).normal(size=6).astype(np.float32))


def life(root, mask, noise, *, strict=False):
    begin_process()
    network = Masked(mask)
    cell = ck.AccumulationTrainCell(network, adam(network.trainable_params()), 2).set_train()
    batches = ck.data.resumable(pipeline(), epochs=1)
    state = ck.StateManager(cell, batches, strict=strict)
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2), saving=ck.Saving(when_busy="wait")) as manager:
        point = manager.restore(state)
        for x, y in batches:
            cell(x + noise, y)
            manager.step(state)
            if cell.counters.micro_steps == point.batches_delivered + 2:
                break


@pytest.mark.parametrize(
    ("again", "named"),
    [((1, 2), ""), ((3, 2), "network.mask"), ((1, 3), "life(): noise"), ((4, 5), "life(): noise, network.mask")],
)
def test_array_that_is_another_one_is_named(root, caplog, again, named):
    life(root, drawn(1), drawn(2))
    assert SAID not in caplog.text
    life(root, *map(drawn, again))
    assert (f"{named}: {SAID}" in caplog.text) == bool(named)
    life(root, *map(drawn, again))  # it is compared with the run's beginning, not with the last start
    assert caplog.text.count(SAID) == 2 * bool(named)


def test_strict_refuses_it(root):
    life(root, drawn(1), drawn(2), strict=True)
    with pytest.raises(ResumeError, match=SAID):
        life(root, drawn(1), drawn(3), strict=True)


def test_array_in_a_cell_of_a_model_is_named(root, caplog):
    for seed in (1, 2):
        begin_process()
        network = Masked(drawn(seed))
        model = Model(ck.AccumulationTrainCell(network, adam(network.trainable_params()), 2))
        checkpoints(root).train(model, seed, pipeline())
    assert f"network.mask: {SAID}" in caplog.text


def test_values_that_are_large_or_odd_cost_nothing():
    """A window over a recording, which would be terabytes; lists that contain themselves; numbers without an end."""
    window = np.lib.stride_tricks.sliding_window_view(np.zeros(1 << 22, np.float32), 1 << 16)
    loop = [1, 2]
    loop[:] = [loop, loop]
    nested = [1, 2]
    for _ in range(30):
        nested = [nested, nested]
    found = start_values_of([], {"window": window, "loop": loop, "nested": nested, "digits": [1, 10**5000]}.items())
    assert found.keys() == {"window"}


def test_what_is_compared():
    """No paths, and other long texts only if they are written in the code; no parameters, and no steps, which may
    become more; of long values the beginning."""
    order = [3, 1, 2]
    values = {
        "order": order,
        "pairs": [(np.ones(3), np.zeros(2)), (np.ones(3), np.zeros(2))],
        "large": np.zeros((1 << 20, 4), np.uint8),
        "number": 3.0,
        "truth": True,
        "text": "a",
        "path": "/".join(("/data", "a")),
        "long text": "a".ljust(65, "a"),
        "written path": "/data/b",
        "written relative path": "./data/b",
        "written file": "data/b.ckpt",
        "written address": "s3://data/b",
        "written text": "data/b",
        "steps": range(3),
        "written long text": "a text that is written in the code of the script, and that is longer than 64 characters",
        "nothing": None,
        "function": ops.relu,
        "ufunc": np.add,
        "class": nn.MSELoss,
        "cell": nn.MSELoss(),
        "operator": ops.ReLU(),
        "mixed": ("a", 1.0, None),
        "part": functools.partial(ops.relu),
        "type": ms.float16,
        "names": ["a", "b"],
        "one": [1],
        "set": {"b", "a"},
        "objects": np.array([{}], dtype=object),
        "parameter": ms.Parameter(np.ones(3, np.float32)),
        "large tensor": ms.Tensor(np.zeros(1 << 20, np.float32)),
    }
    found = start_values_of([], values.items())
    chosen = {"truth", "text", "function", "class", "cell", "operator", "nothing", "mixed", "part", "type"}
    chosen |= {"one", "set", "ufunc", "written text", "written long text"}
    assert found.keys() == {"number", "order", "pairs", "large", "names", *chosen}
    order.reverse()
    values["large"][0, 0] = 1
    again = start_values_of([], values.items())
    assert {name for name, digest in again.items() if digest != found[name]} == {"order", "large"}


TABLE = np.arange(6)


class Holder:
    def __init__(self, values):
        self.values, self.times = values, [1.0, 2.0]


def of_a_table(x):
    return x * TABLE[0]


def test_what_called_functions_and_objects_hold_is_compared():
    """The gradient of a function that names an array; an array in an object; no lists of numbers there."""

    def weighted(x):
        return of_a_table(x) * scale[0]

    scale = [0.5, 2.0]
    gradient = ms.grad(weighted)
    held, named = Holder(np.ones(2)), Holder(np.ones(2))
    found = start_values_of([], [("gradient", gradient), ("held", held), ("named", named)], [named])
    found = {name for name, digest in found.items() if not is_single(digest)}
    assert {name.rpartition(".")[2] for name in found} == {"TABLE", "scale", "values"}
    assert len(found) == 3


def test_order_of_texts_is_compared():
    """Of a set, the order changes with every process; another text is other data, which is compared elsewhere."""

    def differing(one, other):
        return differ(start_values_of([], [("it", one)])["it"], start_values_of([], [("it", other)])["it"])

    assert differing(["a", "b", "c"], ["b", "a", "c"])
    assert differing({"a": 0, "b": 1}, {"b": 0, "a": 1})
    assert not differing(["a", "b", "c"], ["a", "b", "c"])
    assert not differing(["a", "b", "c"], ["b", "a", "d"])
    assert "it" not in start_values_of([], [("it", {"a": 1, "b": 5})])


class Options:
    noise = 0.0

    def __init__(self, decay):
        self.decay = decay


def noisy(x):
    return x + Options.noise


def own_loop(root, numbers, *, strict=False, epochs=1):
    """Train with ``numbers`` by each way in which a loop reaches one: a variable, an item, an attribute, a function."""
    begin_process()
    network = nn.Dense(6, 3)
    cell = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), adam(network.trainable_params())).set_train()
    batches = ck.data.resumable(pipeline(), epochs=epochs)
    state = ck.StateManager(cell, batches, strict=strict)
    scale, shift, decay, Options.noise, level = numbers
    levels = {0: level, 1: 1.0}
    table, options = {"shift": shift, "id": time.time()}, Options(decay)
    arguments = types.SimpleNamespace(port=id(cell))
    began, most = time.monotonic(), epochs * 100
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2), saving=ck.Saving(when_busy="wait")) as manager:
        point = manager.restore(state)
        for number, (x, y) in enumerate(batches, point.batches_delivered):
            cell(noisy(x * scale + table["shift"]) * options.decay * levels[number % 2], y)
            print(f"{number} of {epochs}: {time.monotonic() - began} s, {table}, {arguments.port}")
            manager.step(state)
            if number >= most:
                break
        manager.save_final(state)


NUMBERS = (1.0, 2.0, 3.0, 4.0, 6.0)
NAMES = ("own_loop(): scale", "table['shift']", "options.decay", "Options.noise", "levels[0]")


@pytest.mark.parametrize(("place", "name"), [*enumerate(NAMES)])
def test_number_that_is_another_one_is_named(root, caplog, place, name):
    other = [5.0 if at == place else one for at, one in enumerate(NUMBERS)]
    own_loop(root, NUMBERS, strict=True)
    with pytest.raises(ResumeError, match=SAID):
        own_loop(root, other, strict=True)
    own_loop(root, other)
    (said,) = [one for one in caplog.messages if SAID in one]
    assert name in said
    assert not any(one in said for one in {*NAMES} - {name})


def test_numbers_that_training_does_not_use_are_no_matter(root, caplog):
    """Times, addresses and process ids differ in each process; a run may go on for more epochs than before."""
    own_loop(root, NUMBERS, strict=True)
    own_loop(root, NUMBERS, strict=True, epochs=2)
    assert SAID not in caplog.text


def deciding(root, choices, *, strict=False):
    """Train as ``choices`` say, each in another way: by a condition, a limit, a match, a function, a class."""
    begin_process()
    network = nn.Dense(6, 3)
    cell = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), adam(network.trainable_params())).set_train()
    batches = ck.data.resumable(pipeline(), epochs=1)
    state = ck.StateManager(cell, batches, strict=strict)
    flag, limit, mode, activation, kind, every, maybe, verbose, deadline, most = choices
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2), saving=ck.Saving(when_busy="wait")) as manager:
        point = manager.restore(state)
        for number, (x, y) in enumerate(batches, point.batches_delivered):
            if verbose:
                print(number, mode, limit)
            if number >= most or time.monotonic() > deadline:
                break
            given = x if flag else x * 2
            match mode:
                case "double":
                    given = given * 2
            if number % every:
                given = given + 1
            if maybe is not None:
                given = given * maybe
            if float(ops.abs(x).max()) > limit:
                continue
            cell(activation(kind()(given)), y)
            manager.step(state)


CHOICES = (True, 1e9, "plain", ops.relu, nn.Tanh, 2, 0.5, False, 1e12, 5)
OTHERS = (False, 1e8, "double", ops.tanh, nn.ReLU, 3, None, True, 2e12, 4)


@pytest.mark.parametrize(
    ("place", "name"), [*enumerate(("flag", "limit", "mode", "activation", "kind", "every", "maybe"))]
)
def test_choice_that_is_another_one_is_named(root, caplog, place, name):
    """Such as one that an earlier run of the script decides, whose loop does not run again."""
    deciding(root, CHOICES, strict=True)
    again = [other if at == place else one for at, (one, other) in enumerate(zip(CHOICES, OTHERS, strict=True))]
    deciding(root, again)
    (said,) = [one for one in caplog.messages if SAID in one]
    assert f"deciding(): {name}: {SAID}" in said


def test_choices_that_do_not_decide_what_is_trained_are_no_matter(root, caplog):
    """What is printed, a limit of time, how many batches there are."""
    deciding(root, CHOICES, strict=True)
    deciding(root, (*CHOICES[:7], *OTHERS[7:]), strict=True)
    assert SAID not in caplog.text


class Kind(enum.Enum):
    PLAIN = 1
    DOUBLE = 2


class Style:
    name = "plain"


class Named:
    key = "a"


def half(kind, x):
    return x if kind == "none" else x / 2


def choosing(root, choices, run, *, strict=False):
    """Train as ``choices`` say; beside it, variables whose names training uses for something else."""
    begin_process()
    network = nn.Dense(6, 3)
    cell = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), adam(network.trainable_params())).set_train()
    batches = ck.data.resumable(pipeline(), epochs=1)
    state = ck.StateManager(cell, batches, strict=strict)
    way, limit, pair, part, twice, kind, config, Style.name, rows, turn, file, mark = choices
    key, first, named = run, run, Named()
    named.key = run
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2), saving=ck.Saving(when_busy="wait")) as manager:
        point = manager.restore(state)
        print(key, first, named.key)
        for number, (x, y) in enumerate(batches, point.batches_delivered):
            given = x if way is Kind.PLAIN else x * 2
            if limit is not None and float(ops.abs(x).max()) > limit:
                continue
            if pair[0] == "double" or config["train"]["mode"] == "double" or Style.name == "double":
                given = given * 2
            for key in ("a", "b"):
                given = given * 2 if key == "a" else given
            first = True
            if first:
                given = half("half", given)
            if file == "a/double" or mark == b"double":
                given = given * 2
            given = given * turn.real
            cell(twice(part(given.astype(kind).astype(ms.float32)))[rows], y[rows])
            manager.step(state)
            if number >= 5:
                break


def choices_of(name="plain"):
    is_plain = name == "plain"
    return (
        Kind.PLAIN if is_plain else Kind.DOUBLE,
        1e9 if is_plain else None,
        (name, 0.5),
        functools.partial(ops.clamp, min=-9.0 if is_plain else -8.0),
        (lambda x: x * 2) if is_plain else (lambda x: x * 3),
        ms.float16 if is_plain else ms.bfloat16,
        {"train": {"mode": name}},
        name,
        slice(None) if is_plain else slice(1),
        0.5 + 1j if is_plain else 0.25 + 1j,
        "a/plain" if is_plain else "a/double",
        b"plain" if is_plain else b"double",
    )


PLACES = (
    "way",
    "limit",
    "pair",
    "part",
    "twice",
    "kind",
    "config['train']['mode']",
    "Style.name",
    "rows",
    "turn",
    "file",
    "mark",
)


@pytest.mark.parametrize(("place", "name"), [*enumerate(PLACES)])
def test_choice_of_another_kind_is_named(root, caplog, place, name):
    choosing(root, choices_of(), "u", strict=True)
    again = [*choices_of()]
    again[place] = choices_of("double")[place]
    choosing(root, again, "v")
    (said,) = [one for one in caplog.messages if SAID in one]
    assert said.partition(f": {SAID}")[0].endswith(f"choosing(): {name}")


def test_name_that_training_uses_for_something_else_is_no_matter(root, caplog):
    """A loop or a call gives the name another value before anything reads it."""
    choosing(root, choices_of(), "u", strict=True)
    choosing(root, choices_of(), "v", strict=True)
    assert SAID not in caplog.text


def test_what_is_made_when_it_is_needed_first_is_no_matter():
    def differing(one, other):
        return differ(start_values_of([], [("it", one)])["it"], start_values_of([], [("it", other)])["it"])

    assert differing(None, 0.5)
    assert differing("a", None)
    assert not differing(nn.MSELoss(), None)
    assert not differing(np.ones(3), None)
    assert not differing(None, None)


scale = ms.Tensor(5.0)


def test_variable_of_a_closure_is_not_taken_for_a_global_one_of_that_name():
    def holding(scale):
        return lambda x: x * scale

    (one, other) = (start_values_of([], [("it", holding(np.full(3, value)))]) for value in (1.0, 2.0))
    assert one.keys() == other.keys() == {"it", "it.scale"}
    assert one["it.scale"] != other["it.scale"]


class Huber(nn.Cell):
    def __init__(self, delta):
        super().__init__()
        self.out = nn.Dense(6, 3)
        self.loss = nn.HuberLoss(delta=delta)

    def construct(self, x, y):
        return self.loss(self.out(x), y)


def test_option_of_a_cell_of_mindspore_is_named(root, caplog):
    for epochs, delta in ((1, 0.5), (2, 0.5), (3, 0.25)):
        assert SAID not in caplog.text
        begin_process()
        network = Huber(delta)
        rate = nn.CosineDecayLR(0.0, 0.01, 10 * epochs)  # which may be given for more epochs
        optimizer = nn.Momentum(network.trainable_params(), rate, 0.9)
        checkpoints(root).train(Model(ck.AccumulationTrainCell(network, optimizer, 2)), epochs, pipeline())
    assert f"HuberLoss.delta: {SAID}" in caplog.text


class Scaled(Masked):
    def __init__(self, scale, number):
        super().__init__(drawn(1))
        self.scale, self.number = scale, number

    def construct(self, x, y):
        return self.scaled(x, y)

    def scaled(self, x, y):
        return ops.square(self.out(x * self.mask) * self.scale - y).mean()


def test_number_that_construct_reads_is_named(root, caplog):
    for number, scale in enumerate((2.0, 2.0, 3.0)):
        assert SAID not in caplog.text
        begin_process()
        network = Scaled(scale, number)
        model = Model(ck.AccumulationTrainCell(network, adam(network.trainable_params()), 2))
        checkpoints(root).train(model, number + 1, pipeline())
    assert f"Scaled.scale: {SAID}" in caplog.text


class ManyNumbers(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d, self.e, self.f, self.g, self.h = range(8)

    def construct(self, x):
        return x * (self.h + self.g + self.f + self.e + self.d + self.c + self.b + self.a)


def test_order_follows_from_no_hashes():
    names = [name for name in start_values_of([ManyNumbers()], []) if name.startswith("ManyNumbers.")]
    assert names == [f"ManyNumbers.{letter}" for letter in "abcdefgh"]


class Anchored:
    def __init__(self, network):
        self.weights = [ms.Tensor(one.asnumpy().copy()) for one in network.trainable_params()]


def copies(network):
    return Anchored(network).weights


def first(network):
    return ms.Tensor(network.out.weight.asnumpy().copy())


def same(network):
    return [ms.Tensor(np.ones(3, np.float32)), ms.Tensor(np.ones(3, np.float32))]


def taken_after(root, take, *, before=False):
    begin_process()
    network = Masked(drawn(1))
    cell = ck.AccumulationTrainCell(network, adam(network.trainable_params()), 2).set_train()
    batches = ck.data.resumable(pipeline(), epochs=1)
    state = ck.StateManager(cell, batches)
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2), saving=ck.Saving(when_busy="wait")) as manager:
        anchor = take(network) if before else None
        point = manager.restore(state)
        anchor = anchor or take(network)
        for x, y in batches:
            cell(x, y)
            manager.step(state)
            assert anchor is not None
            if cell.counters.micro_steps == point.batches_delivered + 2:
                break


@pytest.mark.parametrize("take", [Anchored, copies, first])
def test_copy_of_weights_that_is_taken_after_the_restore_is_named(root, caplog, take):
    taken_after(root, take)
    assert SAID not in caplog.text
    taken_after(root, take)
    assert "anchor" in caplog.text.partition(SAID)[0]
    assert SAID in caplog.text


@pytest.mark.parametrize(("take", "before"), [(same, False), (Anchored, True)])
def test_copy_that_every_start_makes_alike_is_not_named(root, caplog, take, before):
    for _ in range(2):
        taken_after(root, take, before=before)
    assert SAID not in caplog.text


Pair = collections.namedtuple("Pair", "low high")


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (Pair(0.5, 0.25), Pair(0.5, 0.75), True),
        (Pair(0.5, 0.25), Pair(0.5, 0.25), False),
    ],
)
def test_numbers_in_a_named_tuple_are_compared(one, other, differs):
    (before,), (now,) = ([start_values_of([], [("w", each)])["w"]] for each in (one, other))
    assert differ(before, now) == differs


def test_what_cannot_be_digested_stops_no_training(root, caplog, monkeypatch):
    monkeypatch.setattr("ckptkit.mindspore.inspect.values.start._choice", lambda value, written: value.no_such_thing)
    life(root, drawn(1), drawn(2))
    life(root, drawn(1), drawn(2))
    assert caplog.text.count("could not examine the code of this training") == 2


class Shared:
    def __init__(self, rows, mark):
        self.first, self.rows, self.base, self.mark = slice(1), rows, b"a", mark


def test_what_equal_constants_share_is_compared():
    """Python keeps one object for equal constants, so a choice may be an object that another variable has, too."""
    first = Shared(slice(1), b"a")
    first.rows, first.mark = first.first, first.base
    found = start_values_of([], [("it", first)])
    again = start_values_of([], [("it", Shared(slice(2), b"b"))])
    other = {name for name in found if differ(found[name], again[name])}
    assert other == {"it.rows", "it.mark"}


class Windowed:
    part, turn, mark = slice(1), 1j, b"a"


def test_choices_in_a_class_are_compared(monkeypatch):
    found = start_values_of([], [("it", Windowed)])
    for name, value in (("part", slice(2)), ("turn", 2j), ("mark", b"b")):
        monkeypatch.setattr(Windowed, name, value)
    again = start_values_of([], [("it", Windowed)])
    assert {name for name in found if differ(found[name], again[name])} == {"it.part", "it.turn", "it.mark"}


class Modes:
    @staticmethod
    @functools.cache
    def of(is_plain):
        return "modes/plain" if is_plain else "modes/double"


def test_texts_written_in_classes_and_behind_decorators_are_compared():
    (before,), (now,) = ([start_values_of([], [("mode", Modes.of(one))])["mode"]] for one in (True, False))
    assert differ(before, now)


def test_names_of_files_take_no_place_of_other_choices():
    files = [
        (f"file {at}", "a text that is written in the code of the script, more than 64 characters") for at in range(300)
    ]
    assert "mode" in start_values_of([], [*files, ("mode", "a")])


def test_texts_and_bytes_are_never_compared():
    """``python -bb`` makes an error of that; equal ones have one hash."""
    program = (
        "from ckptkit.mindspore.inspect import start_values_of\n"
        "print(sorted(start_values_of([], [('text', 'a/b'), ('bytes', b'a/b')])))"
    )
    ran = subprocess.run([sys.executable, "-bb", "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout == "['bytes', 'text']\n"
