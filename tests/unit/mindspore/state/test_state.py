"""StateManager: what a checkpoint holds, and that it comes back whole or not at all."""

import copy
import functools
import json
import random
from dataclasses import replace

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn, ops
from support.memory import contents_of
from support.options import grouped
from support.training import (
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
from unit.mindspore.train.test_train_cell import groups

import ckptkit as ck
from ckptkit.mindspore.state.manager import StateManager


def stored(capture):
    return contents_of(capture, "a000001-c0000000001-m0001")


def manager(root, **options):
    return ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1000), **grouped(**options))


def batch(seed, count=4):
    values = samples(count, seed)
    return ms.Tensor(values["x"]), ms.Tensor(values["y"])


def trained(cell, calls, first=0):
    cell.set_train()
    for seed in range(first, first + calls):
        cell(*batch(seed))
    return cell


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
    weights = ("hidden.weight", "norm.gamma", "norm.moving_mean", "narrow.weight", "table")
    owned = ("moment1.narrow.weight", "learning_rate", "global_step", "beta1_power")
    table = {
        **dict.fromkeys(weights, ("weights", "micro")),
        "wide.weight": ("weights", "cycle"),
        **dict.fromkeys(("moment1.wide.weight", "moment2.wide.weight"), ("optimizer", "cycle")),
        **dict.fromkeys(owned, ("optimizer", "micro")),
        **dict.fromkeys((f"{sums_prefix()}wide.weight", f"{sums_prefix()}divisor"), ("accumulators", "micro")),
    }
    assert {name: found[name] for name in table} == table
    assert {name for name, (role, _) in found.items() if role != "state"} == {one.name for one in cell.get_parameters()}


def bits_of(state):
    return {leaf.name: leaf.array.tobytes() for leaf in state.capture().leaves if leaf.role != "state"}


def test_memory_that_cannot_be_kept_is_read_at_each_capture(monkeypatch):
    """That of a transposed parameter, and all where reading copies."""
    dense = nn.Dense(3, 2)
    dense.weight.set_data(ms.Tensor(np.ones((3, 2), np.float32)).T)
    assert not dense.weight.is_contiguous()
    state = StateManager(dense)
    for _ in range(2):
        dense.weight[0, 1] += 1.0
        assert bits_of(state) == tensors(dense)
    monkeypatch.setattr("ckptkit.mindspore.parameters.parameters.can_be_live", lambda: False)
    cell = accumulation_cell(3, network=Wide)
    state = StateManager(cell)
    for _ in range(2):
        trained(cell, 1)
        assert bits_of(state) == tensors(cell)


def test_frozen_is_what_is_declared():
    """A predicate is asked about the parameters of networks only."""
    both, asked = {"table", "norm.moving_mean"}, set()
    for frozen, names in [
        *(([*both], both), (iter(both), both), ("table", {"table"})),
        (lambda name: asked.add(name) or name in both, both),
    ]:
        capture = StateManager(accumulation_cell(3, network=Wide), frozen=frozen).capture()
        assert {leaf.name for leaf in capture.leaves if leaf.lifetime == "frozen"} == names
    assert asked == {one.name for one in Wide().get_parameters()}


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        (["tabel", "table"], "do not exist: tabel"),
        (["table", "global_step"], r"do not belong to a network: global_step\. .*Remove them from frozen="),
        (["table", "accum.divisor"], r"do not belong to a network: accum.divisor\."),
        (["table", "hidden.weight"], r"updates: hidden\.weight.*Remove them from frozen="),
        (lambda name: not name.startswith("norm"), r"hidden\.weight.*Remove them from frozen="),
    ],
)
def test_frozen_names_that_cannot_be_are_refused(frozen, message):
    with pytest.raises(ck.StateMismatchError, match=message):
        StateManager(accumulation_cell(3, network=Wide), frozen=frozen)


def test_changed_frozen_parameter_moves_to_each_checkpoint(root, caplog):
    """Frozen parameters share a file, and one that changes is stored with each checkpoint."""
    cell = accumulation_cell(3, network=Wide)
    state = StateManager(cell, frozen=["table"])
    saved = []
    with manager(root, keep=ck.KeepLatest(10)) as saves:
        saves.restore(state)
        trained(cell, 1)
        for seed in range(4):
            if seed == 2:
                ops.assign(cell.network.table, ms.Tensor(np.full((128, 128), 7, np.float32)))
                cell(*batch(9))
                with pytest.raises(ck.StateMismatchError, match="table"):
                    saves.save(state).result()
            cell(*batch(seed))
            saved.append((saves.save(state).result(), tensors(cell)))
    assert "training changed parameters that are declared frozen: table" in caplog.text
    assert "Traceback" not in caplog.text
    assert [one.stat().st_size > 65536 for one in (root / "frozen" / "a000001").iterdir()] == [True]
    used = []
    for name, expected in saved:
        shards = json.loads((root / "checkpoints" / name / "rank-00000.json").read_bytes())["shards"]
        used.append([one["key"] for one in shards if one["key"].startswith("frozen/")])
        again = accumulation_cell(3, network=Wide)
        # Declaring it is no part of the state: a start without it takes the last checkpoint just as well.
        frozen = ["table"] if name != saved[-1][0] else None
        manager(root).restore(StateManager(again, frozen=frozen), checkpoint=name)
        assert tensors(again) == expected
    assert used[0] == used[1] != used[2] == used[3] == []


class CopiesRate(nn.TrainOneStepCell):
    """Keeps the learning rate once more, under the name that the optimizer's has, as train cells of packages do."""

    def __init__(self):
        network = Mlp()
        super().__init__(network, nn.Momentum(network.trainable_params(), [0.1 / (1 + n) for n in range(9)], 0.9))
        self.learning_rate = copy.deepcopy(self.optimizer.learning_rate)


@pytest.mark.parametrize("make", [functools.partial(accumulation_cell, 2, optimizer=groups), CopiesRate])
def test_training_goes_on_exactly(make):
    cell = make()
    state = StateManager(cell)
    names = [one.name for one in cell.get_parameters()]
    state.begin("runs/exact")
    trained(cell, 5)
    state.count_delivered(5)
    contents = stored(state.capture())
    assert [one.name for one in cell.get_parameters()] == names
    trained(cell, 3, first=5)
    begin_process(seed=6)
    again = make()
    StateManager(again).apply(contents)
    assert tensors(trained(again, 3, first=5)) == tensors(cell)


def test_names_used_twice_are_those_after_first_call():
    first, second = Mlp(), Mlp()
    for network in (first, second):
        network.out.weight.name = network.hidden.weight.name
    first(*batch(0))
    stored = {leaf.name for leaf in StateManager(second).capture().leaves}
    assert {one.name for one in first.get_parameters()} <= stored


class Box:
    def __init__(self, value=None):
        self.value = value
        self.loaded = 0

    def state_dict(self):
        return self.value

    def load_state_dict(self, state):
        self.loaded += 1
        self.value = state


class Renamed(Mlp):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Dense(6, 8, has_bias=False)
        mean = ms.Tensor(np.zeros(8, np.float16))
        self.norm.moving_mean = ms.Parameter(mean, name="norm.moving_mean", requires_grad=False)
        self.out = nn.Dense(8, 3, bias_init=ms.Tensor(np.zeros(3, np.float32)))
        self.out.bias = ms.Parameter(ms.Tensor(np.zeros(4, np.float32)), name="out.bias")
        self.last = ms.Parameter(ms.Tensor(np.zeros(3, np.float32)), name="last")


def test_every_differing_leaf_is_named_and_nothing_changes(monkeypatch):
    monkeypatch.setenv("CKPTKIT_DEBUG", "1")
    contents = stored(StateManager(trained(accumulation_cell(3), 4)).capture())
    disturb()
    cell = accumulation_cell(3, network=Renamed)
    state, before = StateManager(cell), digest(cell)
    with pytest.raises(ck.StateMismatchError, match="Nothing was changed") as raised:
        state.apply(contents)
    assert digest(cell) == before
    assert state.progress().batches_delivered == 0
    expected = {"norm.moving_mean: the checkpoint has F32 [8], this training has F16 [8]"}
    for prefix in ("", "moment1.", "moment2.", sums_prefix()):
        expected |= {f"missing in the checkpoint: {prefix}last", f"not in this training: {prefix}hidden.bias"}
        expected.add(f"{prefix}out.bias: the checkpoint has F32 [3], this training has F32 [4]")
    lines = [line.strip() for line in str(raised.value).splitlines()[1:]]
    assert {*lines} == expected
    assert not any(prefix in line for line in lines[:4] for prefix in ("moment", sums_prefix())), "weights come first"


def rates(*groups):
    def build(weights):
        first, *others = weights
        return nn.Momentum([{"params": others, "lr": groups[0]}, {"params": [first], "lr": groups[-1]}], 0.1, 0.9)

    return accumulation_cell(3, optimizer=build)


def test_other_learning_rates_are_refused_with_advice():
    """As where more epochs are asked for, and the list of rates is made for them."""
    contents = stored(StateManager(rates([0.1] * 6, [0.2] * 6)).capture())
    for now in ([0.1] * 9, [0.1] * 4, 0.1, nn.CosineDecayLR(0.0, 0.1, 9)):
        with pytest.raises(ck.StateMismatchError, match=r"Only learning rates differ.*the epochs that it is for.*impo"):
            StateManager(rates(now, now)).apply(contents)
    with pytest.raises(ck.StateMismatchError, match="The weights fit, so build the optimizer as it was"):
        StateManager(accumulation_cell(3)).apply(contents)


def rated(rate, momentum):
    return accumulation_cell(3, optimizer=lambda weights: nn.Momentum(weights, rate, momentum))


def test_rates_that_the_checkpoint_overrides_are_named(caplog):
    """Compared with those that the run began with, which a loop may have changed since."""
    listed, other = [[rate] * 5 + [0.1] for rate in (0.1, 0.2)]
    for begun, set_to, now, momentum, told in [
        (listed, None, other, 0.9, "learning_rate"),
        (listed, None, listed, 0.9, None),
        (0.1, None, 0.2, 0.8, "learning_rate, momentum"),
        (0.1, 0.05, 0.1, 0.9, None),
        (0.1, 0.05, 0.2, 0.9, "learning_rate"),
        (0.1, 0.05, 0.05, 0.9, None),
    ]:
        caplog.clear()
        cell = rated(begun, 0.9)
        state = StateManager(cell)
        state.begin("runs/rates")
        if set_to is not None:
            ops.assign(cell.optimizer.learning_rate, ms.Tensor(set_to, ms.float32))
        contents = stored(state.capture())
        cell = rated(now, momentum)
        again = StateManager(cell)
        again.apply(contents)
        said = [text.partition(": the script gives other values than the run began with") for text in caplog.messages]
        assert [names for names, words, _ in said if words] == ([told] if told else []), (begun, set_to, now)
        assert cell.optimizer.momentum == 0.9
        kept = again.capture().state["train"]["rates"]
        assert kept == contents.state["train"]["rates"], "each later start is compared with the first one's"


@pytest.fixture
def contents():
    state = StateManager(trained(accumulation_cell(4), 15), pipeline(), box=Box("theirs"))
    state.position.prepare(0, None)
    state.count_delivered(15)
    return stored(state.capture())


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


def test_refused_resume_changes_nothing(contents):
    disturb()
    for make, dataset, alter, message in [
        (lambda: accumulation_cell(3), pipeline(), {}, r"accumulation_steps=4, this train cell has 3"),
        (accumulation_cell, None, {}, r"both times, or never"),
        (accumulation_cell, pipeline(40), {}, r"batches per epoch"),
        (accumulation_cell, pipeline(), {"updates": 2}, r"global_step went from 0 to 3, but 2 updates"),
        (accumulation_cell, pipeline(), None, r"\['other'\].*\['box'\]"),
    ]:
        train_cell, box = make(), Box("mine")
        state = StateManager(train_cell, dataset, **{"other" if alter is None else "box": box})
        before = digest(train_cell), rng_digest(), ds.config.get_seed(), state.progress()
        altered = replace(contents, progress=replace(contents.progress, **(alter or {})))
        with pytest.raises((ck.ResumeError, ck.StateMismatchError), match=message):
            state.apply(altered)
        assert (digest(train_cell), rng_digest(), ds.config.get_seed(), state.progress()) == before, message
        assert (box.value, box.loaded) == ("mine", 0), message
        if state.position is not None:
            assert not vars(state.position.dataset).keys() & {"create_tuple_iterator", "create_dict_iterator"}
        assert ds.config.get_fast_recovery(), message
    cell, box = accumulation_cell(), Box()
    state = StateManager(cell, pipeline(), box=box)
    state.observe_step(["a batch"], "a loss")
    state.apply(contents)
    assert (box.value, box.loaded, cell.counters.micro_steps, state.position.delivered) == ("theirs", 1, 15, 15)
    assert (state.last_batch, state.last_outputs) == (None, None), "they are of the training before"


def test_another_kind_of_train_cell_is_refused():
    cells = accumulation_cell(4), nn.TrainOneStepCell(network := Mlp(), adam(network.trainable_params()))
    captures = [stored(StateManager(cell).capture()) for cell in cells]
    words = "without an .* is of one", "of an .* is without one"
    for cell, contents, told in zip(cells, reversed(captures), words, strict=True):
        with pytest.raises(ck.ResumeError, match=f"was taken {told}"):
            StateManager(cell).apply(contents)


def test_section_that_nobody_here_wrote_is_refused():
    with pytest.raises(TypeError, match=r"user/box/deep"):
        StateManager(accumulation_cell(), box=Box({"deep": object()})).capture()
    cell = accumulation_cell()
    state, before = StateManager(cell), digest(cell)
    contents = stored(state.capture())
    train = contents.state["train"]
    for sections, error, message in [
        ({}, ck.StateMismatchError, r"no section 'rng'"),
        ({"train": train | {"first_world": 0}}, ck.CorruptCheckpointError, "the run began with 0 ranks"),
        ({"train": train | {"first_world": "2"}}, ck.CorruptCheckpointError, "the run began with '2' ranks"),
        ({"train": train | {"more": 1}}, ck.StateMismatchError, r"has \[.*'more'.*\], not .* by another version"),
    ]:
        with pytest.raises(error, match=message):
            state.apply(replace(contents, state=contents.state | sections if sections else {}))
    kept = {name: one for name, one in contents.state_tensors.items() if not name.startswith("rng/")}
    assert kept.keys() != contents.state_tensors.keys()
    with pytest.raises(ck.CorruptCheckpointError, match=contents.checkpoint):
        state.apply(replace(contents, state_tensors=kept))
    assert digest(cell) == before
    state.apply(contents)


def test_counts_of_updates_that_disagree_are_refused():
    """A restore forgets what was counted before."""
    state = StateManager(accumulation_cell(2))
    state.begin("runs/counted")
    contents = stored(state.capture())
    trained(state.cell, 2)
    state.count_delivered(2)
    ops.assign(state.cell.optimizer.global_step, ms.Tensor([5], ms.int32))
    with pytest.raises(ck.ResumeError, match=r"went from 0 to 5, but 1 updates were counted"):
        state.capture()
    state.apply(contents)
    trained(state.cell, 1)
    assert state.progress().batches_delivered == 1


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
