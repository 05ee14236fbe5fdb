"""Random cells and optimizers that are beside the trained cells: held, named, called by the loop, or given by name."""

from __future__ import annotations

import copy
import functools
import types

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn, ops
from support.training import begin_process

import ckptkit as ck
from ckptkit.errors import ResumeError
from ckptkit.mindspore.inspect import find, find_random_operators

ROWS = [(ms.Tensor(np.ones((2, 6), np.float32)), ms.Tensor(np.zeros((2, 6), np.float32))) for _ in range(3)]


class Noise(nn.Cell):
    """An augmentation without parameters."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(p=0.3)

    def construct(self, x):
        return self.drop(x)


AT_MODULE = Noise().set_train()
OFF = Noise()
NORMAL = ops.StandardNormal(seed=5)


def calls(noise, x):
    return noise(x)


class Net(nn.Cell):
    """Calls a cell that it holds outside of its registered cells."""

    def __init__(self, noise):
        super().__init__()
        self.dense = nn.Dense(6, 6)
        self.noises = [noise]
        self.by_name = {"first": noise}
        self.held = types.SimpleNamespace(noise=noise)
        self.function = functools.partial(calls, noise)

    def construct(self, x):
        return self.noises[0](self.dense(x))


class NamesOne(nn.Cell):
    def construct(self, x):
        return AT_MODULE(x)


class NamesOneThatIsOff(nn.Cell):
    def construct(self, x):
        return OFF(x)


class MakesOne(nn.Cell):
    def construct(self, x):
        return nn.Dropout(p=0.3)(x)


def held(attribute, noise):
    net = Net(noise)
    for other in {"noises", "by_name", "held", "function"} - {attribute}:
        delattr(net, other)
    return net


HOLDERS = {
    "noises": "noises[0].drop (nn.Dropout)",
    "by_name": "by_name['first'].drop (nn.Dropout)",
    "held": "held.noise.drop (nn.Dropout)",
    "function": "function(1).drop (nn.Dropout)",
}


@pytest.mark.parametrize("mode", ["pynative", "graph"])
@pytest.mark.parametrize("attribute", HOLDERS)
def test_random_cell_that_no_cell_registers_is_found(attribute, mode):
    begin_process(mode=mode)
    (found,) = find(held(attribute, Noise().set_train()))
    assert found.where == f"the train cell (Net): {HOLDERS[attribute]}"
    assert not found.certain


@pytest.mark.parametrize("attribute", HOLDERS)
def test_held_dropout_that_is_not_in_training_drops_nothing(attribute):
    begin_process()
    net = held(attribute, Noise()).set_train()  # does not reach it
    assert find(net) == ()


@pytest.mark.parametrize(
    ("make", "where"),
    [(NamesOne, "AT_MODULE.drop (nn.Dropout)"), (MakesOne, "nn.Dropout in construct() in test_cells_beside.py:")],
    ids=["a module's cell", "made there"],
)
def test_random_cell_that_construct_names_is_found(make, where):
    begin_process()
    (found,) = find(make())
    assert where in found.where


def test_named_dropout_that_is_not_in_training_drops_nothing():
    begin_process()
    assert find(NamesOneThatIsOff()) == ()


class Job:
    """A training with a loop of its own, which may call ``noise``."""

    def __init__(self, root, optimizer=nn.Adam, noise=None):
        begin_process(mode="pynative")
        self.network = nn.SequentialCell(nn.Dense(6, 6), nn.Dropout(p=0.3))
        self.optimizer = optimizer(self.network.trainable_params(), 0.01)
        self.noise = noise
        loss = nn.MSELoss()
        self.gradients = ms.value_and_grad(lambda x, y: loss(self.network(x), y), None, self.optimizer.parameters)
        self.batches = ck.data.resumable(ROWS, epochs=2)
        self.manager = ck.CheckpointManager(root)

    def restore(self, cells, **named):
        self.state = ck.StateManager(cells, self.batches, strict=True, **named)
        return self.manager.restore(self.state)


def train(job, cells, **named):
    job.restore(cells, **named)
    for x, y in job.batches:
        job.optimizer(job.gradients(x, y)[1])
        job.manager.step(job.state)


def train_on_noise(job, cells):
    job.restore(cells)
    for x, y in job.batches:
        job.optimizer(job.gradients(job.noise(x), y)[1])
        job.manager.step(job.state)


def evaluate_with_noise(job, cells):
    job.restore(cells)
    for x, y in job.batches:
        job.optimizer(job.gradients(x, y)[1])
        print(job.noise(x).mean())
        job.manager.step(job.state)


@pytest.mark.parametrize("beside", ["nothing", "the optimizer"])
def test_dropout_of_a_network_given_by_name_is_refused(beside, tmp_path):
    """Whether it is in training yet or not: a loop calls ``set_train`` again and again."""
    job = Job(tmp_path / "run")
    named = {} if beside == "the optimizer" else {"optimizer": job.optimizer}
    with pytest.raises(ResumeError, match=r"model\.1 \(nn\.Dropout\)"):
        train(job, [job.optimizer] if beside == "the optimizer" else [], model=job.network, **named)


class Draws(nn.Cell):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(3)

    def construct(self, x):
        return x * float(self.rng.random())


def test_generator_in_a_network_given_by_name_is_refused(tmp_path):
    job = Job(tmp_path / "run")
    job.network[1] = Draws()
    with pytest.raises(ResumeError, match=r"model\.1 \(Draws\): rng \(Generator\)"):
        train(job, [job.optimizer], model=job.network)


def test_optimizer_given_by_name_that_rounds_by_launch_is_refused(tmp_path):
    job = Job(tmp_path / "run", nn.RMSProp)
    ck.nn.replace_dropout(job.network)
    with pytest.raises(ResumeError, match=r"optimizer \(nn\.RMSProp\)"):
        train(job, [job.network], optimizer=job.optimizer)


def test_average_given_by_name_is_not_asked_for_its_dropout(tmp_path):
    job = Job(tmp_path / "run")
    average = copy.deepcopy(job.network).set_train(False)
    ck.nn.replace_dropout(job.network)
    train(job, [job.network, job.optimizer], average=average)


def test_random_cell_that_the_loop_calls_is_refused(tmp_path):
    job = Job(tmp_path / "run", noise=Noise().set_train())
    ck.nn.replace_dropout(job.network)
    with pytest.raises(ResumeError, match=r"job\.noise\.drop \(nn\.Dropout\)"):
        train_on_noise(job, [job.network, job.optimizer])


@pytest.mark.parametrize(
    ("loop", "noise"),
    [(train_on_noise, Noise()), (evaluate_with_noise, Noise().set_train())],
    ids=["is off", "training does not depend on it"],
)
def test_cell_that_the_loop_calls_and_that_changes_nothing_is_no_finding(loop, noise, tmp_path):
    job = Job(tmp_path / "run", noise=noise)
    ck.nn.replace_dropout(job.network)
    loop(job, [job.network, job.optimizer])


def noisy(x):
    return AT_MODULE(ms.Tensor(x)).asnumpy()


def drawn(x):
    return x + ops.randn(x.shape).asnumpy()


def made_there(x):
    return nn.Dropout(p=0.3)(ms.Tensor(x)).asnumpy()


def operator_with_a_seed(x):
    return x + NORMAL(x.shape).asnumpy()


class Loader:
    def __init__(self, make):
        self.make = make

    def __iter__(self):
        for x in range(4):
            yield (self.make(np.full((2, 6), x, np.float32)),)


def mapped(make):
    return ds.NumpySlicesDataset(np.ones((4, 6), np.float32), ["x"]).map(make, ["x"])


@pytest.mark.parametrize("data", [mapped, Loader])
@pytest.mark.parametrize(
    ("make", "where"),
    [(noisy, "AT_MODULE.drop (nn.Dropout)"), (drawn, "ops.randn"), (made_there, "nn.Dropout")],
    ids=["a cell", "a function", "a class"],
)
def test_random_operator_of_mindspore_in_data_is_found(data, make, where):
    """A map runs it in a thread, and a loader while training waits; reading the data again does not set it back."""
    begin_process()
    (found,) = find_random_operators(data(make))
    assert found.where.endswith(f": {where}")


@pytest.mark.parametrize("data", [mapped, Loader])
def test_operator_with_a_seed_of_its_own_in_data_is_no_finding(data):
    """Another process makes it anew, and reads the data again from the beginning."""
    begin_process()
    assert [*find_random_operators(data(operator_with_a_seed))] == []


@pytest.mark.parametrize("data", [mapped, Loader])
def test_draws_in_data_are_refused_before_training(data, tmp_path):
    begin_process(mode="pynative")
    network = nn.Dense(6, 6)
    batches = ck.data.resumable(data(drawn), epochs=1)
    state = ck.StateManager([network], batches, strict=True)
    with ck.CheckpointManager(tmp_path / "run") as manager, pytest.raises(ResumeError, match=r"ops\.randn"):
        manager.restore(state)
