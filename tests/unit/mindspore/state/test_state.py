"""StateManager: what a checkpoint holds, and that it comes back whole or not at all."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import threading
from dataclasses import replace
from datetime import timedelta

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import amp, mint, nn, ops
from mindspore.common import np_dtype
from support.memory import contents_of
from support.options import grouped
from support.training import (
    NOTES,
    SIZE,
    Mlp,
    accumulation_cell,
    adam,
    begin_process,
    digest,
    disturb,
    pipeline,
    rng_digest,
    samples,
    sums_prefix,
    tensors,
)

import ckptkit as ck
from ckptkit.mindspore.state.manager import StateManager, Training
from ckptkit.storage import open_storage
from ckptkit.testing.faults import Fault, FaultyStorage


def stored(capture, name="a000001-c0000000001-m0001"):
    """What a checkpoint of ``capture`` gives back."""
    return contents_of(capture, name)


def manager(root, **options):
    return ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1000), **grouped(**options))


def batch(seed, count=4):
    values = samples(count, seed)
    return ms.Tensor(values["x"]), ms.Tensor(values["y"])


def trained(cell, calls):
    cell.set_train()
    for seed in range(calls):
        cell(*batch(seed))
    return cell


# Roles and lifetimes


class Wide(Mlp):
    """Has tensors of 64 KiB, where the lifetime of the optimizer's parameters begins to count."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Dense(128, 128, has_bias=False)  # 65,536 bytes
        self.narrow = nn.Dense(128, 127, has_bias=False)  # 65,024 bytes
        self.table = ms.Parameter(ms.Tensor(np.ones((128, 128), np.float32)), name="table", requires_grad=False)

    def construct(self, x, y):
        return super().construct(x, y) + ops.square(self.wide.weight).mean() + ops.square(self.narrow.weight).mean()


def test_roles_and_lifetimes():
    assert {leaf.role for leaf in StateManager(nn.Flatten()).capture().leaves} == {"state"}
    cell = trained(accumulation_cell(3, network=Wide), 1)
    found = {leaf.name: (leaf.role, leaf.lifetime) for leaf in StateManager(cell).capture().leaves}
    table = {
        "hidden.weight": ("weights", "micro"),
        "norm.gamma": ("weights", "micro"),
        "norm.moving_mean": ("weights", "micro"),
        "narrow.weight": ("weights", "micro"),
        "wide.weight": ("weights", "cycle"),
        "table": ("weights", "micro"),
        "moment1.wide.weight": ("optimizer", "cycle"),
        "moment2.wide.weight": ("optimizer", "cycle"),
        "moment1.narrow.weight": ("optimizer", "micro"),
        "learning_rate": ("optimizer", "micro"),
        "global_step": ("optimizer", "micro"),
        "beta1_power": ("optimizer", "micro"),
        f"{sums_prefix()}wide.weight": ("accumulators", "micro"),
        f"{sums_prefix()}divisor": ("accumulators", "micro"),
    }
    assert {name: found[name] for name in table} == table
    parameters = {one.name for one in cell.get_parameters()}
    assert {name for name, (role, _) in found.items() if role != "state"} == parameters


def test_where_looking_copies_each_capture_is_whole(monkeypatch):
    monkeypatch.setattr("ckptkit.mindspore.parameters.parameters.can_be_live", lambda: False)
    cell = accumulation_cell(3, network=Wide)
    state = StateManager(cell)
    for _ in range(2):
        trained(cell, 1)
        found = {leaf.name: leaf.array.tobytes() for leaf in state.capture().leaves if leaf.role != "state"}
        assert found == tensors(cell)


def test_a_transposed_parameter_is_taken_anew():
    cell = nn.Dense(3, 2)
    cell.weight.set_data(ms.Tensor(np.ones((3, 2), np.float32)).T)
    assert not cell.weight.is_contiguous()
    state = StateManager(cell)
    for _ in range(2):
        cell.weight[0, 1] += 1.0
        (found,) = [leaf.array.tolist() for leaf in state.capture().leaves if leaf.name == "weight"]
        assert found == cell.weight.asnumpy().tolist()


def test_accumulators_are_left_out_at_a_boundary():
    cell = trained(accumulation_cell(3), 3)
    roles = {leaf.role for leaf in StateManager(cell).capture().leaves}
    assert roles == {"weights", "optimizer", "state"}


def test_every_parameter_of_a_foreign_cell_is_micro():
    leaves = StateManager(trained(foreign(Wide), 1)).capture().leaves
    found = {leaf.name: (leaf.role, leaf.lifetime) for leaf in leaves}
    assert found["wide.weight"] == ("weights", "micro")
    assert found["moment1.wide.weight"] == ("optimizer", "micro")


def test_frozen_is_what_is_declared():
    both = {"table", "norm.moving_mean"}
    for frozen, names in [([*both], both), (iter(both), both), (lambda name: name in both, both), ("table", {"table"})]:
        capture = StateManager(accumulation_cell(3, network=Wide), frozen=frozen).capture()
        assert {leaf.name for leaf in capture.leaves if leaf.lifetime == "frozen"} == names


class WithLora(Wide):
    """Trains two small matrices beside weights that stay as they are."""

    def __init__(self):
        super().__init__()
        self.lora_a = ms.Parameter(ms.Tensor(np.full((6, 2), 0.1, np.float32)), name="lora_a")
        self.lora_b = ms.Parameter(ms.Tensor(np.full((2, 3), 0.1, np.float32)), name="lora_b")

    def construct(self, x, y):
        return super().construct(x, y) + ops.square(ops.matmul(ops.matmul(x, self.lora_a), self.lora_b)).mean()


def lora(weights):
    return adam([one for one in weights if "lora" in one.name])


def lora_in_a_scaling_cell(network):
    network = network()
    optimizer = lora(network.trainable_params())
    return nn.TrainOneStepWithLossScaleCell(network, optimizer, nn.DynamicLossScaleUpdateCell(1024, 2, 50))


def lora_in_a_loop(network):
    network = network()
    return [network, mint.optim.SGD([network.lora_a, network.lora_b], lr=0.1)]


def lora_with_own_sums(network):
    scaler = amp.StaticLossScaler(1024)
    return accumulation_cell(3, network=network, optimizer=lora, loss_scaler=scaler, normalize="samples")


def test_frozen_predicate_is_asked_about_networks_only():
    weights = {one.name for one in WithLora().get_parameters()}
    for make in (lora_with_own_sums, lora_in_a_scaling_cell, lora_in_a_loop):
        asked = []
        state = StateManager(make(WithLora), frozen=lambda name, asked=asked: asked.append(name) or "lora" not in name)
        frozen = {leaf.name for leaf in state.capture().leaves if leaf.lifetime == "frozen"}
        assert set(asked) == weights, make
        assert frozen == weights - {"lora_a", "lora_b"}, make


def foreign(network):
    network = network()
    return nn.TrainOneStepCell(network, adam(network.trainable_params()))


def loose(network):
    network = network()
    return [network, mint.optim.SGD(network.trainable_params(), lr=0.1)]


def accumulating(network):
    return accumulation_cell(3, network=network)


def test_frozen_names_that_cannot_be_are_refused():
    updated, advice = ["table", "hidden.weight"], r".*Remove them from frozen="
    for make, frozen, message in [
        (accumulating, ["tabel", "table"], "do not exist: tabel"),
        *(
            (accumulating, ["table", name], rf"do not belong to a network: {name}\. {advice}")
            for name in ("global_step", "accum.divisor", "beta1_power", "learning_rate")
        ),
        *((make, updated, rf"hidden\.weight{advice}") for make in (accumulating, foreign, loose)),
        (accumulating, lambda name: not name.startswith("norm"), rf"hidden\.weight{advice}"),
    ]:
        with pytest.raises(ck.StateMismatchError, match=message) as caught:
            StateManager(make(Wide), frozen=frozen)
        assert frozen != updated or "table" not in str(caught.value)


def test_changed_frozen_parameter_moves_to_each_checkpoint(root, caplog):
    """Frozen parameters share a file, and one that changes is stored with each checkpoint."""
    cell = accumulation_cell(3, network=Wide)
    state = StateManager(cell, frozen=["table"])
    contents = []
    with manager(root, keep=ck.KeepLatest(10)) as saves:
        saves.restore(state)
        trained(cell, 1)
        for seed in range(5):
            if seed == 2:
                ops.assign(cell.network.table, ms.Tensor(np.full((128, 128), 7, np.float32)))
            cell(*batch(seed))
            saving = saves.save(state)
            if seed == 2:
                assert "table" in str(saving.exception())
                assert isinstance(saving.exception(), ck.StateMismatchError)
            else:
                contents.append((saving.result(), tensors(cell)))
    assert "training changed parameters that are declared frozen: table" in caplog.text
    assert "Traceback" not in caplog.text
    folder = root / "frozen" / "a000001"
    assert [one.stat().st_size > 65536 for one in folder.iterdir()] == [True]
    used = []
    for name, _ in contents:
        shards = json.loads((root / "checkpoints" / name / "rank-00000.json").read_bytes())["shards"]
        used.append([one["key"] for one in shards if one["key"].startswith("frozen/")])
    assert used[0] == used[1] != []
    assert used[2] == used[3] == []
    for name, expected in contents:
        again = accumulation_cell(3, network=Wide)
        # Declaring it is no part of the state: a start without it takes the last checkpoint just as well.
        frozen = ["table"] if name != contents[-1][0] else None
        manager(root).restore(StateManager(again, frozen=frozen), checkpoint=name)
        assert tensors(again) == expected


# Round trips


class Mixed(nn.Cell):
    """Parameters of many kinds, most of them buffers."""

    def __init__(self, seed):
        super().__init__()
        rng = np.random.default_rng(seed)
        bits = rng.integers(0, 256, 1024, dtype=np.uint8)
        kinds = {
            "half": (np.float16, (5, 7)),
            "brain": (np_dtype.bfloat16, (5, 7)),
            "single": (np.float32, (3,)),
            "scalar": (np.float32, ()),
            "brain_scalar": (np_dtype.bfloat16, ()),
            "double": (np.float64, (2, 2)),
            "count": (np.int64, ()),
            "bytes": (np.uint8, (9,)),
            "short": (np.int16, (3, 1)),
            "mask": (np.bool_, (6,)),
            "flag": (np.bool_, ()),
            "empty": (np.float32, (0, 3)),
        }
        for name, (kind, shape) in kinds.items():
            size = int(np.prod(shape)) * np.dtype(kind).itemsize
            octets = bits[:size] % 2 if kind is np.bool_ else bits[:size]
            value = ms.Tensor(octets.view(kind).reshape(shape))
            setattr(self, name, ms.Parameter(value, name=name, requires_grad=False))
        self.weight = ms.Parameter(ms.Tensor(rng.normal(size=(4, 4)).astype(np.float32)), name="weight")
        self.half_weight = ms.Parameter(ms.Tensor(rng.normal(size=(4, 4)).astype(np.float16)), name="half_weight")

    def construct(self, x):
        return ops.square(self.weight * x).mean() + ops.square(self.half_weight).mean().astype(ms.float32)


def with_mixed(seed):
    network = Mixed(seed)
    return ck.AccumulationTrainCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), 3)


class Tied(Mlp):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Dense(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.other = nn.Dense(6, 6)
        self.other.weight = self.hidden.weight
        self.out = nn.Dense(6, 3)

    def logits(self, x):
        return self.out(self.other(ops.tanh(self.norm(self.hidden(x)))))


def in_groups(weights):
    groups = [{"params": weights[2:], "lr": 0.2}, {"params": weights[:2], "weight_decay": 0.1}]
    return nn.Momentum([*groups, {"order_params": weights}], 0.05, 0.9)


def listed(weights):
    return nn.Momentum(weights, [0.1, 0.05, 0.02, 0.01, 0.005, 0.001], 0.9)


def decaying(weights):
    return nn.Adam(weights, nn.CosineDecayLR(0.001, 0.1, 4))


def half_frozen(weights):
    return nn.Momentum(weights[1:], 0.1, 0.9)


@pytest.mark.parametrize(
    ("mode", "network", "optimizer"),
    [
        ("graph", Tied, in_groups),
        ("pynative", Mlp, listed),
        ("pynative", Mlp, decaying),
        ("pynative", Tied, half_frozen),
        ("pynative", Mlp, nn.SGD),
    ],
)
def test_training_goes_on_exactly(root, mode, network, optimizer):
    begin_process(mode=mode)
    cell = accumulation_cell(2, network=network, optimizer=optimizer)
    with manager(root) as saves:
        state = StateManager(cell)
        saves.restore(state)
        trained(cell, 5)
        names = [leaf.name for leaf in state.capture().leaves]
        saves.save(state)
    assert network is not Tied or ("other.weight" not in names and names.count("hidden.weight") == 1)
    for seed in range(5, 9):
        cell(*batch(seed))
    begin_process(seed=6, mode=mode)
    again = accumulation_cell(2, network=network, optimizer=optimizer).set_train()
    manager(root).restore(StateManager(again))
    for seed in range(5, 9):
        again(*batch(seed))
    assert tensors(again) == tensors(cell)
    assert again.counters == cell.counters


class CopiesRate(nn.TrainOneStepCell):
    """Keeps the learning rate once more, under the name that the optimizer's has, as train cells of packages do."""

    def __init__(self, rate):
        network = Mlp()
        super().__init__(network, nn.Momentum(network.trainable_params(), rate, 0.9))
        self.learning_rate = copy.deepcopy(self.optimizer.learning_rate)


@pytest.mark.parametrize(("mode", "rate"), [("pynative", 0.1), ("graph", [0.1, 0.05, 0.02, 0.01, 0.005, 0.001])])
def test_copied_learning_rate_is_stored_beside_its_original(root, mode, rate):
    begin_process(mode=mode)
    cell = CopiesRate(rate)
    with manager(root) as saves:
        state = StateManager(cell)
        names = [one.name for one in cell.get_parameters()]
        saves.restore(state)
        trained(cell, 3)
        state.count_delivered(3)
        assert [one.name for one in cell.get_parameters()] == names
        saves.save(state)
    assert sum("learning_rate" in name for name in set(names)) == 2
    trained(cell, 2)
    begin_process(seed=6, mode=mode)
    again = CopiesRate(rate)
    manager(root).restore(StateManager(again))
    assert tensors(trained(again, 2)) == tensors(cell)


def test_names_used_twice_are_those_after_first_call():
    first, second = Mlp(), Mlp()
    for network in (first, second):
        network.out.weight.name = network.hidden.weight.name
    first(*batch(0))
    stored = {leaf.name for leaf in StateManager(second).capture().leaves}
    assert {one.name for one in first.get_parameters()} <= stored


def test_capture_changes_nothing():
    cell = trained(accumulation_cell(3), 4)
    state = StateManager(cell, pipeline())
    state.position.prepare(0, None)
    state.count_delivered(4)
    before = digest(cell)
    state.capture()
    assert digest(cell) == before


def test_checkpoint_of_an_earlier_moment_leaves_no_accumulators():
    cell = trained(accumulation_cell(3), 3)
    state = StateManager(cell)
    boundary = stored(state.capture())
    cell(*batch(7))
    assert any(one.asnumpy().any() for one in cell.accumulators)
    state.apply(boundary)
    assert not any(one.asnumpy().any() for one in cell.accumulators)
    assert cell.counters.micro_step == 0


# User objects


class Box:
    def __init__(self, value=None):
        self.value = value
        self.loaded = 0

    def state_dict(self):
        return self.value

    def load_state_dict(self, state):
        self.loaded += 1
        self.value = state


def test_user_objects_come_back_by_name():
    value = {"a": [1, (2.5, None)], 3: b"x", "array": np.arange(4, dtype=np.int8), "n": np.float32(0.1)}
    contents = stored(StateManager(accumulation_cell(2), first=Box(value), second=Box("two")).capture())
    first, second = Box(), Box()
    StateManager(accumulation_cell(2), first=first, second=second).apply(contents)
    assert second.value == "two"
    assert first.value.pop("array").tobytes() == value.pop("array").tobytes()
    assert first.value == value
    assert [type(one) for one in first.value["a"][1]] == [float, type(None)]


def test_user_state_that_cannot_be_stored_is_named():
    with pytest.raises(TypeError, match=r"user/box/deep"):
        StateManager(accumulation_cell(2), box=Box({"deep": object()})).capture()


class Regression:
    """A model and an optimizer of a framework that is not MindSpore's."""

    def __init__(self):
        self.weight, self.momentum = np.zeros(3), np.zeros(3)

    def step(self, x):
        self.momentum = 0.9 * self.momentum + x + np.random.normal(size=3)
        self.weight = self.weight - 0.1 * self.momentum

    def state_dict(self):
        return {"weight": self.weight, "momentum": self.momentum}

    def load_state_dict(self, state):
        self.weight, self.momentum = state["weight"], state["momentum"]


def test_a_training_without_cells_resumes_exactly(root):
    def train(folder, until=None):
        begin_process()
        model, seen = Regression(), {}
        batches = ck.data.resumable([np.full(3, one) for one in range(4)], epochs=2)
        saving = ck.Saving(when_busy="wait")
        with ck.CheckpointManager(folder, save=ck.SaveEvery(micro_steps=1), saving=saving) as checkpoints:
            state = StateManager([], batches, training=ck.Training(ignore=NOTES), model=model)
            checkpoints.restore(state)
            for at, x in enumerate(batches, state.progress().batches_delivered + 1):
                model.step(x)
                seen[at] = model.weight.tobytes() + model.momentum.tobytes()
                checkpoints.step(state)
                if at == until:
                    return seen
            checkpoints.save_final(state)
        return seen

    expected = train(root / "whole")
    assert len(set(expected.values())) == 8
    train(root / "run", until=3)
    assert train(root / "run") == {at: one for at, one in expected.items() if at > 3}


# Refusals change nothing


class Renamed(Mlp):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8, affine=False)
        self.hidden = nn.Dense(6, 8, has_bias=False)
        self.last = ms.Parameter(ms.Tensor(np.zeros(3, np.float32)), name="last")

    def logits(self, x):
        return super().logits(x) + self.last


class OtherKinds(Mlp):
    def __init__(self):
        super().__init__()
        self.norm.moving_mean = ms.Parameter(
            ms.Tensor(np.zeros(8, np.float16)), name="norm.moving_mean", requires_grad=False
        )
        self.out = nn.Dense(8, 4)


def named(pattern, names, *, sums=True):
    """A line for each tensor that belongs to each of the weights."""
    prefixes = ["", "moment1.", "moment2.", *([sums_prefix()] if sums else [])]
    return {pattern.format(prefix + name) for prefix in prefixes for name in names}


def lines_of_renamed():
    lines = named("missing in the checkpoint: {}", ["last"])
    lines |= named("not in this training: {}", ["hidden.bias", "norm.gamma", "norm.beta"])
    # Without affine=True they are still there, but not trained.
    return lines - {"not in this training: norm.gamma", "not in this training: norm.beta"}


def lines_of_other_kinds():
    lines = named("{}: the checkpoint has F32 [3, 8], this training has F32 [4, 8]", ["out.weight"])
    lines |= named("{}: the checkpoint has F32 [3], this training has F32 [4]", ["out.bias"])
    return lines | {"norm.moving_mean: the checkpoint has F32 [8], this training has F16 [8]"}


def lines_of_momentum():
    weights = ["hidden.weight", "hidden.bias", "norm.gamma", "norm.beta", "out.weight", "out.bias"]
    lines = named("not in this training: {}", weights, sums=False)
    lines -= {f"not in this training: {name}" for name in weights}
    lines |= {f"missing in the checkpoint: {name}" for name in ["momentum", *(f"moments.{one}" for one in weights)]}
    return lines | {"not in this training: beta1_power", "not in this training: beta2_power"}


class ManyParameters(nn.Cell):
    def __init__(self, prefix):
        super().__init__()
        names = [f"{prefix}{number:03}" for number in range(200)]
        self.many = ms.ParameterTuple([ms.Parameter(ops.ones(1), name=name) for name in names])


def test_hundreds_of_renamed_leaves_fill_four_lines(monkeypatch):
    def lines(state):
        with pytest.raises(ck.StateMismatchError, match="Nothing was changed") as raised:
            state("new").apply(stored(state("old").capture()))
        return str(raised.value).splitlines()[1:]

    def by_name(prefix):
        return StateManager(Mlp(), thing=ManyParameters(prefix))

    for state in (by_name, lambda prefix: StateManager(ManyParameters(prefix))):
        monkeypatch.delenv("CKPTKIT_DEBUG", raising=False)
        found = lines(state)
        assert found[0] == "  missing in the checkpoint: new000"
        assert len(found) == 3
        assert found[-1] == "  and 398 more; CKPTKIT_DEBUG=1 lists them"
        monkeypatch.setenv("CKPTKIT_DEBUG", "1")
        assert len(lines(state)) == 400


def momentum(weights):
    return nn.Momentum(weights, 0.1, 0.9)


def test_every_differing_leaf_is_named_and_nothing_changes(monkeypatch):
    """What is missing and too much, other shapes and dtypes, another optimizer."""
    monkeypatch.setenv("CKPTKIT_DEBUG", "1")
    contents = stored(StateManager(trained(accumulation_cell(3), 4)).capture())
    disturb()
    for network, optimizer, lines in [
        (Renamed, adam, lines_of_renamed()),
        (OtherKinds, adam, lines_of_other_kinds()),
        (Mlp, momentum, lines_of_momentum()),
    ]:
        cell = accumulation_cell(3, network=network, optimizer=optimizer)
        state = StateManager(cell)
        before = digest(cell)
        with pytest.raises(ck.StateMismatchError, match="Nothing was changed") as raised:
            state.apply(contents)
        assert digest(cell) == before
        assert state.progress().batches_delivered == 0
        assert {line.strip() for line in str(raised.value).splitlines()[1:]} == lines


def rates(*groups):
    def build(weights):
        first, *others = weights
        return nn.Momentum([{"params": others, "lr": groups[0]}, {"params": [first], "lr": groups[-1]}], 0.1, 0.9)

    return accumulation_cell(3, optimizer=build)


def test_other_learning_rates_are_refused_with_advice():
    """As where more epochs are asked for, and the list of rates is made for them."""
    contents = stored(StateManager(rates([0.1] * 6, [0.2] * 6)).capture())
    for now in ([0.1] * 9, [0.1] * 4, 0.1, nn.CosineDecayLR(0.0, 0.1, 9)):
        with pytest.raises(
            ck.StateMismatchError, match=r"Only learning rates differ.*the epochs that it is for.*impor"
        ):
            StateManager(rates(now, now)).apply(contents)
    with pytest.raises(ck.StateMismatchError, match="The weights fit, so build the optimizer as it was"):
        StateManager(accumulation_cell(3)).apply(contents)


def saved_rates(build, rate):
    """The checkpoint of a run that may have set its rate."""
    cell = build(0.1, 0.9)
    state = StateManager(cell)
    state.begin("runs/rates")
    if rate is not None:
        ops.assign(cell.optimizer.learning_rate, ms.Tensor(rate, ms.float32))
    return stored(state.capture())


def scalar_rate(rate, momentum):
    return accumulation_cell(3, optimizer=lambda weights: nn.Momentum(weights, rate, momentum))


def rate_list(rate, momentum):
    return accumulation_cell(3, optimizer=lambda weights: nn.Momentum(weights, [rate] * 5 + [0.1], momentum))


def test_rates_that_the_checkpoint_overrides_are_named(caplog):
    for build, set_to, now, told in [
        (rate_list, None, (0.2, 0.9), "learning_rate"),
        (rate_list, None, (0.1, 0.9), None),
        (scalar_rate, None, (0.2, 0.8), "learning_rate, momentum"),
        (scalar_rate, 0.05, (0.1, 0.9), None),
        (scalar_rate, 0.05, (0.2, 0.9), "learning_rate"),
        (scalar_rate, 0.05, (0.05, 0.9), None),
    ]:
        caplog.clear()
        contents = saved_rates(build, set_to)
        cell = build(*now)
        again = StateManager(cell)
        again.apply(contents)
        said = [text.partition(": the script gives other values than the run began with") for text in caplog.messages]
        assert [names for names, words, _ in said if words] == ([told] if told else []), (build, set_to, now)
        assert cell.optimizer.momentum == 0.9
        kept = again.capture().state["train"]["rates"]
        assert kept == contents.state["train"]["rates"], "each later start is compared with the first one's"


@pytest.fixture
def contents():
    """A checkpoint after 15 batches of the pipeline, with a user's object."""
    state = StateManager(trained(accumulation_cell(4), 15), pipeline(), box=Box("theirs"))
    state.position.prepare(0, None)
    state.count_delivered(15)
    return stored(state.capture())


def test_changed_k_holds_at_once_at_boundary():
    state = StateManager(accumulation_cell(4))
    state.begin("runs/k")
    cell = accumulation_cell(3)
    StateManager(cell, training=Training(on_k_change="next_cycle")).apply(stored(state.capture()))
    assert cell.accumulation_steps == 3


def test_generators_that_data_draw_from_stay(contents):
    state = StateManager(accumulation_cell(), pipeline(), box=Box())
    state.apply(contents)
    python = random.getstate()
    state.position.own_draws = frozenset({"numpy"})  # as after a replay that drew
    random.random()
    np.random.random()
    numpy = np.random.get_state()[2]
    state.start.random_state()
    assert random.getstate() == python
    assert np.random.get_state()[2] == numpy


def altered(contents, **progress):
    return replace(contents, progress=contents.progress.model_copy(update=progress))


def test_refused_resume_changes_nothing(contents):
    disturb()
    position = r"contradicts itself: epoch 2, batch 4, but 15 batches delivered, which is epoch 1, batch 4"
    for k, dataset, alter, message in [
        (3, pipeline(), {}, r"accumulation_steps=4, this train cell has 3"),
        (4, None, {}, r"both times, or never"),
        (4, pipeline(40), {}, r"batches per epoch"),
        (4, pipeline(), {"epoch": 2}, position),
        (4, pipeline(), {"updates": 2}, r"global_step went from 0 to 3, but 2 updates"),
        (4, pipeline(), None, r"\['other'\].*\['box'\]"),
    ]:
        train_cell, box = accumulation_cell(k), Box("mine")
        state = StateManager(train_cell, dataset, **{"other" if alter is None else "box": box})
        before = digest(train_cell), rng_digest(), ds.config.get_seed(), state.progress()
        with pytest.raises((ck.ResumeError, ck.StateMismatchError), match=message):
            state.apply(altered(contents, **(alter or {})))
        assert (digest(train_cell), rng_digest(), ds.config.get_seed(), state.progress()) == before, message
        assert (box.value, box.loaded) == ("mine", 0), message
        if state.position is not None:
            assert not vars(state.position.dataset).keys() & {"create_tuple_iterator", "create_dict_iterator"}
        assert ds.config.get_fast_recovery(), message


def test_the_checkpoint_of_the_refusals_is_good(contents):
    cell, box = accumulation_cell(), Box()
    state = StateManager(cell, pipeline(), box=box)
    state.observe_step(["a batch"], "a loss")
    state.apply(contents)
    assert (box.value, box.loaded) == ("theirs", 1)
    assert (state.last_batch, state.last_outputs) == (None, None), "they are of the training before"
    assert cell.counters.micro_steps == 15
    assert state.position.delivered == 15


def test_section_that_nobody_here_wrote_is_refused():
    cell = accumulation_cell()
    state, before = StateManager(cell), digest(cell)
    contents = stored(state.capture())
    with pytest.raises(ck.StateMismatchError, match=r"no section 'rng'"):
        state.apply(replace(contents, state={}))
    for change, error, message in [
        *(
            ({"first_world": one}, ck.CorruptCheckpointError, f"the run began with {one!r} ranks")
            for one in (0, True, "2")
        ),
        ({"more": 1}, ck.StateMismatchError, r"has \[.*'more'.*\], not .* by another version of ckptkit"),
    ]:
        train = {**contents.state["train"], **change}
        with pytest.raises(error, match=message):
            state.apply(replace(contents, state={**contents.state, "train": train}))
    kept = {name: one for name, one in contents.state_tensors.items() if not name.startswith("rng/")}
    assert kept.keys() != contents.state_tensors.keys()
    with pytest.raises(ck.CorruptCheckpointError, match=contents.checkpoint):
        state.apply(replace(contents, state_tensors=kept))
    assert digest(cell) == before
    state.apply(contents)


def test_another_kind_of_train_cell_is_refused():
    cells = accumulation_cell(4), foreign(Mlp)
    captures = [stored(StateManager(cell).capture()) for cell in cells]
    words = "without an .* is of one", "of an .* is without one"
    for cell, contents, told in zip(cells, reversed(captures), words, strict=True):
        before = digest(cell)
        with pytest.raises(ck.ResumeError, match=f"was taken {told}"):
            StateManager(cell).apply(contents)
        assert digest(cell) == before


# Counters that disagree


def test_call_without_delivered_batch_is_refused():
    cell = trained(accumulation_cell(4), 3)
    state = StateManager(cell, pipeline())
    state.position.prepare(0, None)
    state.count_delivered(2)
    with pytest.raises(ck.ResumeError, match=r"called 3 times, but 2 batches were delivered"):
        state.capture()


def test_update_that_nobody_counted_is_refused():
    state = StateManager(accumulation_cell(2))
    trained(state.cell, 2)
    ops.assign(state.cell.optimizer.global_step, ms.Tensor([5], ms.int32))
    with pytest.raises(ck.ResumeError, match=r"went from 0 to 5, but 1 updates were counted"):
        state.capture()


def test_updates_before_the_run_are_not_counted():
    def pretrained(seed):
        cell = accumulation_cell(2)
        ops.assign(cell.optimizer.global_step, ms.Tensor([100 + seed], ms.int32))
        return cell, StateManager(cell)

    cell, state = pretrained(5)
    state.begin("runs/pretrained")
    contents = stored((trained(cell, 2), state.capture())[1])
    cell, state = pretrained(6)
    state.apply(contents)
    assert cell.optimizer.global_step.asnumpy() == [106]
    trained(cell, 2)
    state.capture()


def test_restore_forgets_what_was_counted_before():
    state = StateManager(accumulation_cell(4))
    state.begin("runs/counted")
    contents = stored(state.capture())
    trained(state.cell, 2)
    state.count_delivered(2)
    state.apply(contents)
    trained(state.cell, 1)
    assert state.progress().batches_delivered == 1


def test_progress_is_that_of_the_pipeline():
    state = StateManager(accumulation_cell(4), pipeline())
    for at in range(2 * SIZE):
        progress = state.progress()
        assert (progress.epoch, progress.batch) == divmod(at, SIZE)
        assert (progress.cycles, progress.micro_step) == divmod(at, 4)
        assert progress.batches_delivered - progress.cycle_first_batch == progress.micro_step
        trained(state.cell, 1)


# One's own loop


def own_loop(root, epochs, stop_at=None, *, make=accumulation_cell, counts=False):
    """As the docstring of StateManager spells it out; returns digests by batch and the cell."""
    cell = make()
    cell.set_train()
    dataset = pipeline()
    found = {}
    with manager(root) as saves:
        state = StateManager(cell, dataset)
        point = saves.restore(state)
        batches = dataset.create_tuple_iterator(num_epochs=epochs)
        state.iterator_made()
        at = point.batches_delivered
        for _ in range(point.epoch, epochs):
            for one in batches:
                cell(*one)
                at += 1
                if counts:
                    state.count_delivered(at)
                np.random.rand()
                found[at] = digest(cell) + hashlib.sha256(one[0].asnumpy().tobytes()).hexdigest()
                saves.step(state)
                if at == stop_at:
                    saves.save(state).result()
                    return found
    return found


def stock_cell():
    network = Mlp()
    return nn.TrainOneStepCell(network, adam(network.trainable_params()))


@pytest.mark.parametrize(("make", "counts"), [(accumulation_cell, False), (stock_cell, True)])
def test_own_loop_resumes_exactly(root, make, counts):
    options = {"make": make, "counts": counts}
    whole = own_loop(root.with_name("whole"), 2, **options)
    begin_process()
    found = own_loop(root, 2, 6, **options)
    for stop_at in (12, None):
        begin_process()
        disturb()
        found |= own_loop(root, 2, stop_at, **options)
    assert found == whole


# Deadlines


def test_wait_and_close_have_deadlines(root):
    let_go = threading.Event()
    fault = Fault(lambda: let_go.wait(60), operations={"write"})
    saves = manager(FaultyStorage(open_storage(root), [fault]))
    cell = accumulation_cell(2)
    state = StateManager(cell)
    saves.restore(state)
    handle = saves.save(state)
    kept = tensors(cell)
    for wait in (saves.wait, handle.result, handle.exception):
        with pytest.raises(TimeoutError, match="continues in the background"):
            wait(timedelta(milliseconds=1))
    trained(cell, 2)
    let_go.set()
    saves.close(timedelta(seconds=60))
    assert handle.done()
    assert handle.exception() is None
    again = accumulation_cell(2)
    manager(root).restore(StateManager(again))
    assert tensors(again) == kept
