"""Random operators that are exact in PYNATIVE are named where a function of the loop compiles them."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from support.training import begin_process

import ckptkit as ck
from ckptkit.errors import ResumeError
from ckptkit.mindspore.inspect import find

ROWS = [ms.Tensor(np.ones((2, 6), np.float32)) for _ in range(3)]
KEEPS = "a compiled graph keeps the seed"


class Noisy(nn.Cell):
    def construct(self, x):
        return x + ops.randn(2, 6)


class Job:
    """A functional training in PYNATIVE, with a step that may be compiled."""

    def __init__(self, root, noise=None):
        begin_process(mode="pynative")
        self.noise = noise or nn.Identity()
        self.network = nn.SequentialCell(nn.Dense(6, 6), self.noise).set_train()
        self.optimizer = nn.Adam(self.network.trainable_params(), 0.01)
        self.batches = ck.data.resumable(ROWS, epochs=2)
        self.manager = ck.CheckpointManager(root)
        self.state = ck.StateManager([self.network, self.optimizer], self.batches, strict=True)

    def gradients(self, loss):
        return ms.value_and_grad(loss, None, self.optimizer.parameters)

    def train(self, step):
        self.manager.restore(self.state)
        for x in self.batches:
            step(x)
            self.manager.step(self.state)


def whole_step(job, compile_it):
    network, optimizer = job.network, job.optimizer

    def loss(x):
        return (network(x) ** 2).mean()

    gradients = job.gradients(loss)

    def step(x):
        optimizer(gradients(x)[1])

    return compile_it(step)


def forward_only(job, compile_it):
    network = job.network

    def forward(x):
        return (network(x) ** 2).mean()

    gradients = job.gradients(compile_it(forward))

    def step(x):
        job.optimizer(gradients(x)[1])

    return step


def drawn_in_the_step(job, compile_it):
    network, optimizer = job.network, job.optimizer

    def loss(x):
        return ((network(x) + ops.randn(2, 6)) ** 2).mean()

    gradients = job.gradients(loss)

    def step(x):
        optimizer(gradients(x)[1])

    return compile_it(step)


def updated_by_hand(job, compile_it):
    weight = job.network[0].weight

    def step(x):
        ops.assign_add(weight, 0.01 * ops.randn(6, 6))

    return compile_it(step)


@pytest.mark.parametrize("make", [whole_step, forward_only, drawn_in_the_step, updated_by_hand])
def test_random_operator_in_a_compiled_step_is_refused(make, tmp_path):
    job = Job(tmp_path / "run", Noisy())
    with pytest.raises(ResumeError, match=KEEPS):
        job.train(make(job, ms.jit))


@pytest.mark.parametrize("make", [whole_step, forward_only, drawn_in_the_step, updated_by_hand])
def test_the_same_operator_in_a_step_that_nobody_compiles_is_exact(make, tmp_path):
    job = Job(tmp_path / "run", Noisy())
    job.train(make(job, lambda function: function))


@pytest.mark.parametrize("noise", [nn.ReLU, lambda: ck.nn.Dropout(0.3)], ids=["no random cell", "ours"])
def test_compiled_step_without_random_operators_of_mindspore_is_exact(noise, tmp_path):
    job = Job(tmp_path / "run", noise())
    job.train(whole_step(job, ms.jit))


def test_compiled_prediction_that_is_only_printed_is_no_finding(tmp_path):
    job = Job(tmp_path / "run", Noisy())
    network, step = job.network, whole_step(job, lambda function: function)

    @ms.jit
    def predict(x):
        return network(x)

    def step_and_print(x):
        step(x)
        print(predict(x))

    job.train(step_and_print)


def test_method_that_mindspore_decorates_compiles_nothing(tmp_path):
    """As for `nn.Cell.get_parameters`, which has a wrapped function as a compiled one has."""
    job = Job(tmp_path / "run", Noisy())
    step = whole_step(job, lambda function: function)

    def step_and_ask(x):
        job.optimizer.learning_rate.requires_grad = any(one.requires_grad for one in job.network.get_parameters())
        step(x)

    job.train(step_and_ask)


def loss_in_graph_mode(job):
    network = job.network

    def loss(x):
        return ((network(x) + ops.randn(2, 6)) ** 2).mean()

    gradients = job.gradients(loss)

    def step(x):
        job.optimizer(gradients(x)[1])

    return step


def test_loss_that_draws_in_graph_mode_is_refused(tmp_path):
    job = Job(tmp_path / "run")
    ms.set_context(mode=ms.GRAPH_MODE)
    with pytest.raises(ResumeError, match=rf"ops\.randn in loss\(\).*{KEEPS}"):
        job.train(loss_in_graph_mode(job))


class Whole(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense, self.noise = nn.Dense(6, 6), Noisy()

    def construct(self, x):
        return self.noise(self.dense(x))


class Compiled(Whole):
    @ms.jit
    def construct(self, x):
        return self.noise(self.dense(x))


def compiled_later():
    cell = Whole()
    cell.construct = ms.jit(cell.construct)
    return cell


@pytest.mark.parametrize("make", [Compiled, compiled_later])
def test_cell_that_a_compiled_construct_calls_is_found(make):
    begin_process(mode="pynative")
    (found,) = find(make())
    assert "self.noise (Noisy): ops.randn in construct()" in found.where
    assert KEEPS in found.why
    assert find(Whole()) == ()
