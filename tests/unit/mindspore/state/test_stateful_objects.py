"""Objects that hold parameters, and trainings without one train cell, in and out of a checkpoint."""

import contextlib
import copy
import random
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import amp, nn
from mindspore.common.initializer import One
from mindspore.experimental import optim
from support.training import Mlp, accumulation_cell, adam, begin_process, tensors

import ckptkit as ck
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks
from ckptkit.mindspore.state.stateful_objects import ParameterHolder, stateful_of
from ckptkit.nn import Dropout


def scaler(value=1024):
    return amp.DynamicLossScaler(value, 2, 50)


def parameter(array, dtype=ms.float32, name="one"):
    return ms.Parameter(ms.Tensor(np.asarray(array, np.float32)).astype(dtype), name=name)


def stored(root, *cells, **stateful):
    state = StateManager(cells or accumulation_cell(2), **stateful)
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        manager.save(state)


def restored(root, *cells, **stateful):
    state = StateManager(cells or accumulation_cell(2), **stateful)
    ck.CheckpointManager(root).restore(state)
    return state


DTYPES = {"single": ms.float32, "brain": ms.bfloat16, "half": ms.float16, "count": ms.int32}


def test_parameters_of_objects_are_restored_in_place(root):
    bits = np.random.default_rng(1).integers(0, 100, (3, 4))
    given = {name: parameter(bits, dtype) for name, dtype in DTYPES.items()}
    scale, average = scaler(), Mlp()
    scale.scale_value.set_data(ms.Tensor(np.float32(7.5)))
    scale.counter.set_data(ms.Tensor(np.int32(49)))
    average.calls = 5  # what a cell gets later
    stored(root, scaler=scale, average=average, **given)
    fresh = {name: parameter(np.zeros((3, 4)), dtype, "renamed") for name, dtype in DTYPES.items()}
    scale, other = scaler(), Mlp()
    seen = scale.scale_value.asnumpy()
    assert tensors(other) != tensors(average)
    restored(root, scaler=scale, average=other, **fresh)
    for name, one in given.items():
        assert fresh[name].get_bytes() == one.get_bytes(), name
    assert (seen, int(scale.counter.asnumpy())) == (np.float32(7.5), 49)
    assert (tensors(other), other.calls) == (tensors(average), 5)


def test_scheduler_goes_on_with_its_counter_and_rates(root):
    def build():
        net, schedulers = Mlp(), optim.lr_scheduler
        optimizer = optim.Adam(net.trainable_params(), 0.1)
        inner = [schedulers.StepLR(optimizer, 2, 0.5), schedulers.ExponentialLR(optimizer, 0.9)]
        return net, optimizer, schedulers.SequentialLR(optimizer, inner, [3])

    net, optimizer, scheduler = build()
    for _ in range(4):
        scheduler.step()
    stored(root, net, optimizer, scheduler=scheduler)
    again_net, again, resumed = build()
    state = restored(root, again_net, again, scheduler=resumed)
    for _ in range(4):
        scheduler.step()
        resumed.step()
        assert again.lrs[0].asnumpy() == optimizer.lrs[0].asnumpy()
    inner = {f"_schedulers/{at}/{name}" for at in (0, 1) for name in ("_last_lr/0", "last_epoch")}
    assert stateful_of("s", scheduler).state_dict().keys() == {*inner, "last_epoch", "_last_lr/0"}
    leaves = state.capture().leaves
    roles = {leaf.name: leaf.role for leaf in leaves}
    assert len(roles) == len(leaves), "weights that network and optimizer share count once"
    names = (optimizer.lrs[0].name, "exp_avg.hidden.weight", "hidden.weight", "norm.moving_mean")
    assert [roles[name] for name in names] == ["optimizer", "optimizer", "weights", "weights"]


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("table", lambda: parameter(np.zeros((2, 3)), ms.float16), r"value: the checkpoint has F32 .*F16 \[2, 3\]"),
        ("table", lambda: parameter(np.zeros((3, 2))), r"value: the checkpoint has F32 \[2, 3\].*F32 \[3, 2\]"),
        ("thing", Mlp, r"missing in the checkpoint: hidden\.weight"),
        ("ema", lambda: average(box={}), r"not in this object: box/more"),
        ("trainer", lambda: ck.attributes(Trainer(), "step"), r"not in this object: best"),
    ],
)
def test_another_object_is_refused_before_anything_is_changed(root, name, wrong, message):
    def given(value):
        trainer = ck.attributes(Trainer(), "step", "best")
        table = parameter(np.full((2, 3), value))
        return {"thing": scaler(value), "table": table, "ema": average(box={"more": value}), "trainer": trainer}

    stored(root, **given(64))
    cell, good = accumulation_cell(2), given(8)
    before = tensors(cell)
    with pytest.raises(ck.StateMismatchError, match=rf"object {name}(?s:.*){message}"):
        ck.CheckpointManager(root).restore(StateManager(cell, **{**good, name: wrong()}))
    assert tensors(cell) == before
    assert good["thing"].scale_value.asnumpy() == 8
    assert (good["table"].asnumpy() == 8).all()
    restored(root, **good)
    assert good["thing"].scale_value.asnumpy() == 64


class Config(dict):
    __getattr__ = dict.__getitem__


class Handing:
    """Hands both methods on to what it is around."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_own_state_methods_precede_parameter_holder():
    """The state methods that every cell has do not count as its own; objects are not asked for what they lack."""
    both = SimpleNamespace(parameter=scaler().counter, state_dict=dict, load_state_dict=print)
    handing = Handing(both)
    assert (stateful_of("both", both), stateful_of("handing", handing)) == (both, handing)
    assert isinstance(stateful_of("cell", Mlp()), ParameterHolder)
    assert [*stateful_of("config", Config(scale=parameter(1))).state_dict()] == ["scale"]
    for one in (object(), 3, {"a": 1}, ms.Tensor(1.0), Mlp, random.SystemRandom()):
        with pytest.raises(TypeError, match=r"thing: a \w+ has no state_dict\(\) and load_state_dict\(\), and no p"):
            StateManager(accumulation_cell(2), thing=one)


class Inner:
    def __init__(self):
        self.level = 0.5


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


def average(box=None):
    made = Average(ms.ParameterTuple(Mlp().trainable_params()))
    if box is not None:
        made.box = {"weight": made.shadow[0], **box}
    return made


def test_plain_attributes_come_back_with_the_parameters(root, shown):
    given, fresh = average(), average()
    given.update()
    given.update()
    stored(root, ema=given)
    restored(root, ema=fresh)
    assert (fresh.updates, fresh.decay, fresh.inner.level, fresh.late) == (2, 0.99, 1.5, ("made", 2))
    first, by_name, *others = fresh.seen
    seen = [(one.dtype, one.asnumpy().tolist()) for one in (first, *others)]
    assert seen == [(ms.float32, [0, 0]), (ms.float16, [1, 1]), (ms.float16, [2, 2])]
    assert (by_name["a"].tolist(), float(fresh.by_name["now"])) == ([0, 1, 2], 2)
    assert type(fresh.by_name["all"]) is OrderedDict
    assert [float(one) for one in fresh.by_name["all"][3]] == [1]
    assert "ema continues with updates = 2" in shown()


CONTAINERS = {  # what stands in the stored object, and in the fresh one
    "bounded": (deque([1.5, [2]], maxlen=3), deque(maxlen=3)),
    "shrunk": (deque([ms.Tensor([1.0])]), deque([0, 0, 0])),
    "counts": (Counter({"a": 2, 3: 4}), Counter({"b": 1})),
    "defaults": (defaultdict(int, {"a": 2, (3, 4): 5}), defaultdict(int)),
    "listed": ([1, [2]], []),
    "mapped": ({"a": 1}, {}),
    "ordered": (OrderedDict(a=1), OrderedDict()),
}


@pytest.mark.parametrize("by_name", [False, True], ids=["object", "attributes"])
def test_containers_are_filled_where_they_are(root, by_name):
    """Whoever has taken one before the restore, such as a loop, goes on with it; other attributes get new ones."""
    given, fresh = average(), average()
    stands = {name: one for name, (one, _) in CONTAINERS.items()}
    if by_name:  # of deques and the like, those of user's objects only are stored
        stands = {name: stands[name] for name in ("listed", "mapped", "ordered")}
    kept = {name: copy.deepcopy(CONTAINERS[name][1]) for name in stands}
    for name, one in stands.items():
        setattr(given, name, one)
        setattr(fresh, name, kept[name])
        setattr(given, f"late_{name}", one)
    held = (lambda one: ck.attributes(one, *stands)) if by_name else (lambda one: one)
    stored(root, ema=held(given))
    restored(root, ema=held(fresh))
    for name, one in stands.items():
        assert getattr(fresh, name) is kept[name], name
        assert repr(kept[name]) == repr(one), name
        if not by_name:
            assert repr(getattr(fresh, f"late_{name}")).replace("None", repr(int)) == repr(one), name


Place = namedtuple("Place", "weight at seen")


def test_values_beside_parameters_and_objects_come_back(root):
    given, fresh, trainer, other = average(), average(), Trainer(), Trainer()
    for one, value in ((given, 7), (fresh, 0)):
        one.recent = deque([value, one.shadow[0], [value]])
        one.counts = {"all": value, one.inner: value, one.update: value, one.shadow[0]: value}
        one.empty = ms.Tensor(shape=(2,), dtype=ms.float32, init=One())  # has no bits yet
        one.around = {"value": value, "parts": []}
        one.around["parts"].append({"parent": one.around})
    trainer.accumulate_grads = (parameter(np.full(3, 2.5), name="sum"),)
    for one, value in ((trainer, 7), (other, 0)):
        weight = one.accumulate_grads[0]
        one.best = (value, weight, (value, [weight, value]), Place(weight, value, (value,)))
        one.mixed = [value, weight, {"at": value}, ms.Tensor(np.full(2, value, np.float32))]
        one.step = one.scale = one.beside = value
    named = [ck.attributes(one, "accumulate_grads", "step", "best", "mixed", "scale") for one in (trainer, other)]
    memory = other.accumulate_grads[0].asnumpy()
    stored(root, ema=given, trainer=named[0])
    restored(root, ema=fresh, trainer=named[1])
    assert (fresh.recent[0], fresh.recent[2]) == (7, [7])
    assert fresh.recent[1] is fresh.shadow[0]
    assert [*fresh.counts.values()] == [7] * 4
    assert fresh.inner in fresh.counts
    assert (fresh.around["value"], fresh.around["parts"][0]["parent"]) == (7, fresh.around)
    weight = other.accumulate_grads[0]
    assert (other.best[0], other.best[2][0], other.best[2][1][1]) == (7, 7, 7)
    assert other.best[1] is weight
    assert (type(other.best[3]), other.best[3][1:]) == (Place, (7, (7,)))
    assert (other.mixed[0], other.mixed[2], other.mixed[3].asnumpy().tolist()) == (7, {"at": 7}, [7, 7])
    assert (other.step, other.scale, other.beside, memory.tolist()) == (7, 7, 0, [2.5] * 3)
    with pytest.raises(TypeError, match=r"Average\.around is a dict"):
        ck.attributes(given, "around")


def test_cells_given_by_name_store_their_parameters_alone():
    """What every cell has beside them is no state, nor is what MindSpore keeps in one that it has compiled."""
    given = {"average": Mlp(), "norm": nn.BatchNorm1d(3)}
    assert StateManager(accumulation_cell(2), **given, callbacks=OtherCallbacks(), strict=True).findings() == ()
    begin_process(mode="graph")
    cell, fresh = nn.Dense(2, 2), nn.Dense(2, 2)
    cell(ms.Tensor(np.ones((1, 2), np.float32)))
    assert vars(cell).keys() > vars(fresh).keys()
    assert {*stateful_of("average", cell).state_dict()} == {"weight", "bias"}


class Trainer:
    def __init__(self):
        self.step = 0
        self.accumulate_grads = (parameter(np.zeros(3), name="sum"),)
        self.best = None
        self.network = Mlp()
        self.rng = np.random.default_rng(2)
        self.mixed, self._scale = [self.network], 1.0

    @property
    def scale(self):
        return self._scale

    @scale.setter
    def scale(self, value):
        self._scale = value


def test_attributes_of_other_kinds_are_refused():
    for names, error, match in [
        ((), ValueError, "has no attribute without a name"),
        (("step", "stepp"), ValueError, "Trainer has no attribute stepp"),
        (("network",), TypeError, r"Trainer\.network is a Mlp"),
        (("rng",), TypeError, r"Trainer\.rng is a Generator"),
        (("mixed",), TypeError, r"Trainer\.mixed is a list"),
    ]:
        with pytest.raises(error, match=match):
            ck.attributes(Trainer(), *names)
    given = Trainer()
    state = StateManager(accumulation_cell(2), trainer=ck.attributes(given, "best"))
    state.capture()
    given.best = given.network
    with pytest.raises(TypeError, match=r"Trainer\.best is a Mlp"):
        state.capture()


def test_a_save_refuses_parameters_replaced_in_mid_run(root):
    """One that no optimizer keeps, too; another place of a layer stops no save."""
    for name in (None, "moving_mean", "more"):
        cell = accumulation_cell(2)
        state = StateManager(cell)
        with ck.CheckpointManager(root / str(name)) as manager:
            manager.restore(state)
            cell.network.shown = cell.network.out
            if name == "moving_mean":
                cell.network.norm.moving_mean = parameter(np.ones(8), name="norm.moving_mean")
            elif name == "more":
                cell.network.more = nn.Dense(2, 2)
            said = rf"were replaced or added(?s:.*){name}"
            with pytest.raises(ck.ResumeError, match=said) if name else contextlib.nullcontext():
                manager.save(state).result()
            assert len(manager.checkpoints()) == (name is None)


def test_weights_that_others_may_write_are_not_steady():
    """Those of a second optimizer, which may step within the first one's cycle, and those of no optimizer."""
    first, beside = nn.Dense(300, 300, has_bias=False), nn.Dense(301, 300)
    beside.update_parameters_name("beside.")
    network = Mlp()
    network.layer = first
    cell = accumulation_cell(3, network=lambda: network)
    other = optim.Adam([first.weight], 0.1)
    state = StateManager([beside, cell, other])
    assert state.cell is cell
    lifetimes = {leaf.name: leaf.lifetime for leaf in state.capture().leaves}
    assert lifetimes[first.weight.name] == lifetimes["beside.weight"] == "micro"
    assert lifetimes[f"moment1.{first.weight.name}"] == "cycle"


def test_cells_that_make_no_training_are_refused_with_advice():
    with pytest.raises(ck.StateMismatchError, match=r"used twice: hidden\.bias, .*by name"):
        StateManager([Mlp(), Mlp()])
    networks = Mlp(), Mlp()  # as of a GAN: both optimizers count their steps under the same names
    for name, network in zip("gd", networks, strict=True):
        network.update_parameters_name(f"{name}.")
    first, second = (adam(one.trainable_params()) for one in networks)
    with pytest.raises(ck.StateMismatchError, match=r"used twice: .*StateManager\(\.\.\., second_optimizer=it\)"):
        StateManager([*networks, first, second])
    StateManager([*networks, first], second_optimizer=second)
    for wrong in ([], [Mlp(), object()], "cell", None):
        with pytest.raises(TypeError, match=r"train_cell must be an nn\.Cell or a list of them"):
            StateManager(wrong)


class Dropped(Mlp):
    def __init__(self, drop=None):
        super().__init__()
        self.drop = drop or nn.Dropout(p=0.5)


def test_strict_refuses_findings_without_changes_and_else_names_them_once(root, shown):
    def dropped(drop=None, **options):
        return StateManager(accumulation_cell(2, network=lambda: Dropped(drop)), **options)

    refused = dropped(strict=True)
    for _ in range(2):
        with pytest.raises(ck.ResumeError, match=r"strict=False:\n  network\.drop \(nn\.Dropout\)"):
            ck.CheckpointManager(root).restore(refused)
        assert not root.exists()
    state = dropped()
    assert [one.where for one in state.findings()] == ["network.drop (nn.Dropout)"]
    state.begin("runs")
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        manager.save(state)
    assert shown().count("network.drop (nn.Dropout)") == 1
    assert "may not be bit-exact" in shown()
    again = dropped(strict=True)
    before = tensors(again.cell)
    with pytest.raises(ck.ResumeError, match="strict=False"):
        ck.CheckpointManager(root).restore(again)
    assert tensors(again.cell) == before
    thing = scaler()
    given = dropped(Dropout(0.5), strict=True, thing=thing)
    given.cell.scaler = thing
    ck.CheckpointManager(root / "other").restore(given)


def test_spawned_generators_go_on(root):
    def drawn(rng):
        seed = rng.spawn(1)[0]
        return (seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)).random()

    def make():
        return {"rng": np.random.default_rng(5), "seeds": np.random.SeedSequence(5)}

    given, fresh = make(), make()
    first = {name: [drawn(rng) for _ in range(3)] for name, rng in given.items()}
    stored(root, **given)
    later = {name: [drawn(rng) for _ in range(2)] for name, rng in given.items()}
    restored(root, **fresh)
    assert {name: [drawn(rng) for _ in range(2)] for name, rng in fresh.items()} == later
    for name in given:
        assert len({*first[name], *later[name]}) == 5, name
        with pytest.raises(ck.StateMismatchError, match=r"has spawned 5 times, and in the checkpoint 3 times"):
            restored(root, **{**make(), name: fresh[name]})
