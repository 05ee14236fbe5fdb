"""Objects that hold parameters, and trainings without one train cell, in and out of a checkpoint."""

from __future__ import annotations

import copy
import random
from collections import Counter, OrderedDict, defaultdict, deque
from typing import NamedTuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import amp, nn
from mindspore.common.initializer import One
from mindspore.experimental import optim
from support.options import grouped
from support.training import Mlp, accumulation_cell, adam, begin_process, pipeline, tensors

import ckptkit as ck
from ckptkit.mindspore.state.holders import ParameterHolder, stateful_of
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks
from ckptkit.nn import Dropout


def scaler(value=1024):
    return amp.DynamicLossScaler(value, 2, 50)


def stored(root, *cells, **stateful):
    state = StateManager(cells or accumulation_cell(2), **stateful)
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        manager.save(state)


def restored(root, *cells, **stateful):
    state = StateManager(cells or accumulation_cell(2), **stateful)
    ck.CheckpointManager(root).restore(state)
    return state


def test_object_parameters_are_restored_in_place(root):
    given = scaler()
    given.scale_value.set_data(ms.Tensor(np.float32(7.5)))
    given.counter.set_data(ms.Tensor(np.int32(49)))
    stored(root, scaler=given)
    fresh = scaler()
    seen = fresh.scale_value.asnumpy()
    restored(root, scaler=fresh)
    assert seen == np.float32(7.5)
    assert int(fresh.counter.asnumpy()) == 49


@pytest.mark.parametrize("dtype", [ms.float32, ms.bfloat16, ms.float16, ms.int32])
def test_a_parameter_and_a_cell_come_back(root, dtype):
    bits = np.random.default_rng(1).integers(0, 100, (3, 4)).astype(np.float32)
    parameter = ms.Parameter(ms.Tensor(bits).astype(dtype), name="own")
    average = Mlp()
    stored(root, own=parameter, average=average)
    fresh, other = ms.Parameter(ms.Tensor(np.zeros((3, 4), np.float32)).astype(dtype), name="renamed"), Mlp()
    assert tensors(other) != tensors(average)
    restored(root, own=fresh, average=other)
    assert fresh.get_bytes() == parameter.get_bytes()
    assert tensors(other) == tensors(average)


def test_scheduler_state_is_counter_and_rates(root):
    def build():
        net = Mlp()
        optimizer = optim.Adam(net.trainable_params(), 0.1)
        inner = [optim.lr_scheduler.StepLR(optimizer, 2, 0.5), optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]
        return net, optimizer, optim.lr_scheduler.SequentialLR(optimizer, inner, [3])

    net, optimizer, scheduler = build()
    for _ in range(4):
        scheduler.step()
    stored(root, net, optimizer, scheduler=scheduler)
    again_net, again, resumed = build()
    restored(root, again_net, again, scheduler=resumed)
    for _ in range(4):
        scheduler.step()
        resumed.step()
        assert again.lrs[0].asnumpy() == optimizer.lrs[0].asnumpy()
    assert stateful_of("s", scheduler).state_dict().keys() == {
        "_schedulers/0/_last_lr/0",
        "_schedulers/0/last_epoch",
        "_schedulers/1/_last_lr/0",
        "_schedulers/1/last_epoch",
        "last_epoch",
        "_last_lr/0",
    }


def test_experimental_optimizer_rate_is_its_leaf():
    net = Mlp()
    optimizer = optim.Adam(net.trainable_params(), 0.1)
    roles = {leaf.name: leaf.role for leaf in StateManager([net, optimizer]).capture().leaves}
    assert roles[optimizer.lrs[0].name] == "optimizer"
    assert roles["exp_avg.hidden.weight"] == "optimizer"
    assert roles["hidden.weight"] == "weights"


def test_another_object_is_refused_before_anything_is_changed(root):
    stored(root, thing=scaler(), table=ms.Parameter(ms.Tensor(np.ones(3, np.float32)), name="t"))
    cell, thing = accumulation_cell(2), scaler(8)
    before = tensors(cell)
    wrong = ms.Parameter(ms.Tensor(np.zeros(4, np.float16)), name="t")
    with pytest.raises(
        ck.StateMismatchError, match=r"object table(?s:.*)value: the checkpoint has F32 \[3\].*F16 \[4\]"
    ):
        ck.CheckpointManager(root).restore(StateManager(cell, thing=thing, table=wrong))
    with pytest.raises(ck.StateMismatchError, match=r"missing in the checkpoint: hidden\.weight"):
        ck.CheckpointManager(root).restore(StateManager(cell, thing=Mlp(), table=wrong))
    assert tensors(cell) == before
    assert thing.scale_value.asnumpy() == 8


def test_same_size_in_another_shape_is_refused(root):
    stored(root, table=ms.Parameter(ms.Tensor(np.ones((2, 3), np.float32)), name="t"))
    turned = ms.Parameter(ms.Tensor(np.zeros((3, 2), np.float32)), name="t")
    with pytest.raises(ck.StateMismatchError, match=r"value: the checkpoint has F32 \[2, 3\].*has F32 \[3, 2\]"):
        restored(root, table=turned)
    assert not turned.asnumpy().any()


def test_own_state_methods_precede_parameter_holder():
    """The state methods that every cell has do not count as its own."""

    class Own(Mlp):
        def state_dict(self):
            return 1

    class Both:
        def __init__(self):
            self.parameter = scaler().counter

        def state_dict(self):
            return 2

        def load_state_dict(self, state):
            raise AssertionError(state)

    assert stateful_of("own", Own()).state_dict() == 1
    assert stateful_of("both", Both()).state_dict() == 2
    assert isinstance(stateful_of("cell", Mlp()), ParameterHolder)


@pytest.mark.parametrize("one", [object(), 3, {"a": 1}, ms.Tensor(1.0), Mlp, random.SystemRandom()])
def test_objects_without_state_are_refused(one):
    with pytest.raises(TypeError, match=r"thing: a \w+ has no state_dict\(\) and load_state_dict\(\), and no param"):
        StateManager(accumulation_cell(2), thing=one)


# Plain attributes


class Average:
    """Shadow weights, and what a warm-up of their decay counts."""

    def __init__(self, weights, decay=0.99):
        self.shadow = weights.clone(prefix="ema", init="zeros")
        self.updates = 0
        self.decay = decay
        self.seen = [ms.Tensor(np.zeros(2, np.float32)), {"a": np.arange(3)}]
        self.by_name = {}
        self.inner = Inner()
        self.function = len

    def update(self):
        self.updates += 1
        self.seen = [*self.seen, ms.Tensor(np.full(2, self.updates, np.float16))]
        self.inner.level += 0.5
        self.by_name = {"now": ms.Tensor(np.float32(self.updates)), "all": OrderedDict({3: [self.by_name.get("now")]})}
        self.late = ("made", self.updates)


class Inner:
    def __init__(self):
        self.level = 0.5


def average():
    return Average(ms.ParameterTuple(Mlp().trainable_params()))


def test_plain_attributes_come_back_with_the_parameters(root, shown):
    given = average()
    given.update()
    given.update()
    stored(root, ema=given)
    fresh = average()
    restored(root, ema=fresh)
    assert (fresh.updates, fresh.decay, fresh.inner.level, fresh.late) == (2, 0.99, 1.5, ("made", 2))
    first, by_name, *others = fresh.seen
    assert [(one.dtype, one.asnumpy().tolist()) for one in (first, *others)] == [
        (ms.float32, [0, 0]),
        (ms.float16, [1, 1]),
        (ms.float16, [2, 2]),
    ]
    assert by_name["a"].tolist() == [0, 1, 2]
    assert float(fresh.by_name["now"]) == 2
    assert type(fresh.by_name["all"]) is OrderedDict
    assert [float(one) for one in fresh.by_name["all"][3]] == [1]
    assert "ema continues with updates = 2" in shown()


def test_attribute_that_a_cell_gets_later_comes_back(root):
    given = Mlp()
    given.calls = 5
    stored(root, average=given)
    fresh = Mlp()
    restored(root, average=fresh)
    assert fresh.calls == 5


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    ("stands", "fresh"),
    [
        (deque([1.5, [2]], maxlen=3), deque(maxlen=3)),
        (deque([ms.Tensor([1.0])]), deque([0, 0, 0])),
        (Counter({"a": 2, 3: 4}), Counter({"b": 1})),
        (defaultdict(int, {"a": 2, (3, 4): 5}), defaultdict(int)),
        ([deque([2], maxlen=7), Counter("aa")], []),
    ],
    ids=lambda one: type(one).__name__,
)
def test_containers_that_grew_come_back(root, stands, fresh, held):
    given, again = average(), average()
    given.recent = stands
    if held:
        again.recent = kept = copy.deepcopy(fresh)
    stored(root, ema=given)
    restored(root, ema=again)
    assert repr(again.recent).replace("None", repr(int)) == repr(stands)
    if held and not isinstance(fresh, list):
        assert again.recent is kept
        assert repr(kept) == repr(stands)


@pytest.mark.parametrize(
    "stands", [[1, [2]], {"a": 1}, OrderedDict(a=1), deque([1])], ids=lambda one: type(one).__name__
)
def test_containers_are_filled_where_they_are(root, stands):
    """Whoever has taken one before the restore, such as a loop, goes on with it."""
    given, fresh = Trainer(), Trainer()
    given.best, fresh.best = stands, type(stands)()
    taken = fresh.best
    stored(root, trainer=ck.attributes(given, "best"))
    restored(root, trainer=ck.attributes(fresh, "best"))
    assert fresh.best is taken
    assert taken == stands


def test_property_that_gives_a_copy_is_set(root):
    class Copies:
        def __init__(self, *rows):
            self._rows = [*rows]

        @property
        def rows(self):
            return [*self._rows]

        @rows.setter
        def rows(self, rows):
            self._rows = rows

    stored(root, copies=ck.attributes(Copies(1, 2), "rows"))
    fresh = Copies()
    restored(root, copies=ck.attributes(fresh, "rows"))
    assert fresh.rows == [1, 2]


def test_items_of_a_deque_beside_parameters_come_back(root):
    given, fresh = average(), average()
    for one, value in ((given, 7), (fresh, 0)):
        one.recent = deque([value, one.shadow[0], [value]])
    stored(root, ema=given)
    restored(root, ema=fresh)
    assert (fresh.recent[0], fresh.recent[2]) == (7, [7])
    assert fresh.recent[1] is fresh.shadow[0]


class Place(NamedTuple):
    weight: ms.Parameter
    at: int
    seen: tuple[int, ...]


def test_values_in_tuples_beside_parameters_come_back(root):
    given, fresh = Trainer(), Trainer()
    for one, value in ((given, 7), (fresh, 0)):
        weight = one.accumulate_grads[0]
        one.best = (value, weight, (value, [weight, value]), Place(weight, value, (value,)))
    stored(root, trainer=ck.attributes(given, "best"))
    restored(root, trainer=ck.attributes(fresh, "best"))
    weight = fresh.accumulate_grads[0]
    assert fresh.best[0] == 7
    assert fresh.best[1] is weight
    assert (fresh.best[2][0], fresh.best[2][1][1]) == (7, 7)
    assert type(fresh.best[3]) is Place
    assert fresh.best[3][1:] == (7, (7,))


def nested(value, depth):
    for _ in range(depth):
        value = [value]
    return value


def test_deeply_nested_attributes_come_back(root):
    given, fresh = average(), average()
    given.late, fresh.late = nested(7, 60), nested(3, 60)
    stored(root, ema=given)
    restored(root, ema=fresh)
    assert fresh.late == given.late


def test_attributes_that_contain_themselves_are_left_alone(root):
    given, fresh = average(), average()
    for one, value in ((given, 7), (fresh, 3)):
        one.late = {"value": value, "parts": []}
        one.late["parts"].append({"parent": one.late})
    stored(root, ema=given)
    restored(root, ema=fresh)
    assert fresh.late["value"] == 7
    assert fresh.late["parts"][0]["parent"] is fresh.late
    with pytest.raises(TypeError, match=r"Average\.late is a dict"):
        ck.attributes(given, "late")


def test_cells_given_by_name_lack_nothing():
    """What every cell has beside its parameters is no state of it."""
    given = {"average": Mlp(), "norm": nn.BatchNorm1d(3)}
    assert StateManager(accumulation_cell(2), **given, callbacks=OtherCallbacks(), strict=True).findings() == ()


class Small(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(np.ones(2, np.float32)), name="weight")

    def construct(self, x):
        return x * self.weight


def test_item_that_is_there_no_more_is_refused(root):
    given, fresh = average(), average()
    given.box, fresh.box = {"weight": given.shadow[0], "more": 2}, {"weight": fresh.shadow[0]}
    stored(root, ema=given)
    with pytest.raises(ck.StateMismatchError, match=r"object ema(?s:.*)not in this object: box/more"):
        restored(root, ema=fresh)


def test_calls_in_graph_leave_no_state():
    """What MindSpore keeps in a cell that it has compiled is of this process."""
    begin_process(mode="graph")
    cell = Small()
    cell(ms.Tensor(np.ones(2, np.float32)))
    assert vars(cell).keys() > vars(Small()).keys()
    assert [*stateful_of("average", cell).state_dict()] == ["weight"]


def test_values_under_keys_that_are_objects_return(root):
    given, fresh = average(), average()
    for one, value in ((given, 7), (fresh, 0)):
        one.counts = {"all": value, one.inner: value, one.update: value, one.shadow[0]: value}
        one.empty = ms.Tensor(shape=(2,), dtype=ms.float32, init=One())  # has no bits yet
    stored(root, ema=given)
    restored(root, ema=fresh)
    assert [*fresh.counts.values()] == [7] * 4
    assert fresh.inner in fresh.counts


class Trainer:
    def __init__(self):
        self.step = 0
        self.accumulate_grads = (ms.Parameter(ms.Tensor(np.zeros(3, np.float32)), name="sum"),)
        self.best = None
        self.network = Mlp()
        self.rng = np.random.default_rng(2)
        self.mixed = [self.network]
        self._scale = 1.0

    @property
    def scale(self):
        return self._scale

    @scale.setter
    def scale(self, value):
        self._scale = value


NAMES = ("accumulate_grads", "step", "best", "scale")


def test_named_attributes_come_back_and_no_others(root):
    given = Trainer()
    given.accumulate_grads[0].set_data(ms.Tensor(np.full(3, 2.5, np.float32)))
    given.step, given.best, given.scale = 7, [ms.Tensor(np.ones(2, np.float32))], 8.0
    given.mixed = []
    stored(root, trainer=ck.attributes(given, *NAMES))
    fresh = Trainer()
    memory = fresh.accumulate_grads[0].asnumpy()
    restored(root, trainer=ck.attributes(fresh, *NAMES))
    assert memory.tolist() == [2.5] * 3
    assert (fresh.step, fresh.scale) == (7, 8.0)
    assert [one.asnumpy().tolist() for one in fresh.best] == [[1, 1]]
    assert fresh.mixed == [fresh.network]


def test_named_attributes_must_be_named_again(root):
    stored(root, trainer=ck.attributes(Trainer(), "step", "best"))
    with pytest.raises(ck.StateMismatchError, match=r"object trainer(?s:.*)not in this object: best"):
        restored(root, trainer=ck.attributes(Trainer(), "step"))


@pytest.mark.parametrize(
    ("names", "error", "match"),
    [
        ((), ValueError, "has no attribute without a name"),
        (("step", "stepp"), ValueError, "Trainer has no attribute stepp"),
        (("network",), TypeError, r"Trainer\.network is a Mlp"),
        (("rng",), TypeError, r"Trainer\.rng is a Generator"),
        (("mixed",), TypeError, r"Trainer\.mixed is a list"),
    ],
)
def test_attributes_of_other_kinds_are_refused(names, error, match):
    with pytest.raises(error, match=match):
        ck.attributes(Trainer(), *names)


def test_attribute_that_becomes_unstorable_fails_the_save():
    given = Trainer()
    state = StateManager(accumulation_cell(2), trainer=ck.attributes(given, "best"))
    state.capture()
    given.best = given.network
    with pytest.raises(TypeError, match=r"Trainer\.best is a Mlp"):
        state.capture()


def test_numbers_beside_parameters_in_lists_come_back(root):
    given, fresh = Trainer(), Trainer()
    given.best = [3, given.accumulate_grads[0], {"at": 4}]
    fresh.best = [0, fresh.accumulate_grads[0], {"at": 0}]
    stored(root, trainer=ck.attributes(given, "best"))
    restored(root, trainer=ck.attributes(fresh, "best"))
    assert (fresh.best[0], fresh.best[2]) == (3, {"at": 4})


def test_parameters_replaced_in_an_object_are_those_stored(root):
    given = Trainer()
    state = StateManager(accumulation_cell(2), trainer=ck.attributes(given, "accumulate_grads"))
    given.accumulate_grads = (ms.Parameter(ms.Tensor(np.ones(3, np.float32)), name="sum"),)
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        manager.save(state)
    fresh = Trainer()
    restored(root, trainer=ck.attributes(fresh, "accumulate_grads"))
    assert fresh.accumulate_grads[0].asnumpy().tolist() == [1] * 3


@pytest.mark.parametrize("how", ["replaced", "exchanged", "added", "removed"])
def test_a_save_refuses_parameters_replaced_in_mid_run(root, how):
    cell = accumulation_cell(2)
    state = StateManager(cell)
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        if how == "replaced":
            cell.network.out.bias = ms.Parameter(ms.Tensor(np.ones(3, np.float32)), name="out.bias")
        elif how == "exchanged":  # one that no optimizer keeps: there are as many as before
            cell.network.norm.moving_mean = ms.Parameter(ms.Tensor(np.ones(8, np.float32)), name="norm.moving_mean")
        elif how == "added":
            cell.network.more = nn.Dense(2, 2)
        else:
            del cell.network.norm
        statistic = r"norm\.moving_mean"
        name = {"replaced": r"out\.bias", "added": r"bias, weight|more"}.get(how, statistic)
        with pytest.raises(ck.ResumeError, match=rf"were replaced or added(?s:.*){name}"):
            manager.save(state)
        assert manager.checkpoints() == []


def test_another_place_of_a_layer_stops_no_save(root):
    cell = accumulation_cell(2)
    state = StateManager(cell)
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        cell.shown = cell.network.out
        assert manager.save(state).result()


# Trainings without one train cell


def test_network_and_optimizer_share_weights_that_count_once():
    net = Mlp()
    leaves = StateManager([net, adam(net.trainable_params())]).capture().leaves
    roles = {leaf.name: leaf.role for leaf in leaves}
    assert len(roles) == len(leaves)
    assert roles["hidden.weight"] == roles["norm.moving_mean"] == "weights"
    assert roles["moment1.hidden.weight"] == roles["global_step"] == roles["learning_rate"] == "optimizer"
    assert {leaf.lifetime for leaf in leaves} == {"micro"}


def test_accumulation_cell_among_others_is_train_cell():
    cell, average = accumulation_cell(2), nn.Dense(300, 300)
    state = StateManager([average, cell])
    assert state.cell is cell
    lifetimes = {leaf.name: leaf.lifetime for leaf in state.capture().leaves}
    assert lifetimes["weight"] == "micro"  # although it is large


def test_weights_of_second_optimizer_are_not_steady():
    """It may write them within the first one's cycle, so a save copies them at once."""
    first = nn.Dense(300, 300, has_bias=False)
    cell = accumulation_cell(2, network=lambda: _Beside(first))
    other = nn.SGD([first.weight], 0.1)
    for one in other.get_parameters():
        if one is not first.weight:
            one.name = f"other.{one.name}"
    lifetimes = {leaf.name: leaf.lifetime for leaf in StateManager([cell, other]).capture().leaves}
    assert lifetimes[first.weight.name] == "micro"
    assert lifetimes[f"moment1.{first.weight.name}"] == "cycle"


class _Beside(Mlp):
    """Trains one more layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer


def test_duplicate_parameter_names_are_refused_with_advice():
    with pytest.raises(ck.StateMismatchError, match=r"used twice: hidden\.bias, .*by name"):
        StateManager([Mlp(), Mlp()])


def test_advice_for_two_optimizers_can_be_followed():
    """As of a GAN: both count their steps under the same names."""
    networks = Mlp(), Mlp()
    for name, network in zip("gd", networks, strict=True):
        network.update_parameters_name(f"{name}.")
    first, second = (adam(one.trainable_params()) for one in networks)
    with pytest.raises(ck.StateMismatchError, match=r"used twice: .*StateManager\(\.\.\., second_optimizer=it\)"):
        StateManager([*networks, first, second])
    StateManager([*networks, first], second_optimizer=second)


@pytest.mark.parametrize("wrong", [[], [Mlp(), object()], "cell", None])
def test_anything_but_cells_is_refused(wrong):
    with pytest.raises(TypeError, match=r"train_cell must be an nn\.Cell or a list of them"):
        StateManager(wrong)


# What cannot be exact is said once, before anything is changed


class Dropped(Mlp):
    def __init__(self, drop=None):
        super().__init__()
        self.drop = drop or nn.Dropout(p=0.5)


def test_findings_are_one_warning_each_and_once(root, shown):
    cell = accumulation_cell(2, network=Dropped)
    state = StateManager(cell, pipeline())
    assert [one.where for one in state.findings()] == ["network.drop (nn.Dropout)"]
    state.begin("runs")
    state.begin("runs")
    assert shown().count("network.drop (nn.Dropout)") == 1
    assert "may not be bit-exact" in shown()


def test_strict_refuses_start_and_resume_without_changes(root):
    def dropped(**options):
        return StateManager(accumulation_cell(2, network=Dropped), **grouped(**options))

    refused = dropped(strict=True)
    for _ in range(2):
        with pytest.raises(ck.ResumeError, match=r"strict=False:\n  network\.drop \(nn\.Dropout\)"):
            ck.CheckpointManager(root).restore(refused)
        assert not root.exists()
    state = dropped()
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        manager.save(state)
    again = dropped(strict=True)
    before = tensors(again.cell)
    with pytest.raises(ck.ResumeError, match="strict=False"):
        ck.CheckpointManager(root).restore(again)
    assert tensors(again.cell) == before


def test_strict_accepts_ckptkit_dropout_and_named_objects(root, shown):
    cell = accumulation_cell(2, network=lambda: Dropped(Dropout(0.5)))
    thing = scaler()
    cell.scaler = thing
    ck.CheckpointManager(root).restore(StateManager(cell, pipeline(), strict=True, thing=thing))
    assert "bit-exact" not in shown()


class Config(dict):
    __getattr__ = dict.__getitem__


class Slots:
    __slots__ = ("scale",)

    def __getattr__(self, name):
        raise RuntimeError(name)


class Handing:
    """Hands both methods on to what it is around."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Counted:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_objects_are_not_asked_for_what_they_lack():
    scale = ms.Parameter(ms.Tensor(np.float32(1)), name="scale")
    holder = stateful_of("config", Config(scale=scale, slots=Slots()))
    assert list(holder.state_dict()) == ["scale"]
    handing = Handing(Counted())
    assert stateful_of("handing", handing) is handing


@pytest.mark.parametrize("make", [lambda: np.random.default_rng(5), lambda: np.random.SeedSequence(5)])
def test_spawned_generators_go_on(root, make):
    def drawn(rng):
        seed = rng.spawn(1)[0]
        return (seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)).random()

    given, fresh = make(), make()
    first = [drawn(given) for _ in range(3)]
    stored(root, rng=given)
    later = [drawn(given) for _ in range(2)]
    restored(root, rng=fresh)
    assert [drawn(fresh) for _ in range(2)] == later
    assert len({*first, *later}) == 5
    with pytest.raises(ck.StateMismatchError, match=r"has spawned 5 times, and in the checkpoint 3 times"):
        restored(root, rng=fresh)
