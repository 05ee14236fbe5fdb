"""Networks that keep something from one batch to the next."""

from __future__ import annotations

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Named, Told
from exactness.jobs.parts import (
    BATCH,
    CLASSES,
    EPOCHS,
    FEATURES,
    SAMPLES,
    Loss,
    Net,
    accumulating,
    adam,
    rows,
    slices,
    train,
)


class Observed(nn.Cell):
    """The range of its activations, as quantization wants it."""

    def __init__(self):
        super().__init__()
        self.network = Net()
        self.low = ms.Parameter(ms.Tensor(0.0), name="low", requires_grad=False)
        self.high = ms.Parameter(ms.Tensor(0.0), name="high", requires_grad=False)

    def construct(self, x, y):
        out = self.network(x)
        ops.assign(self.low, ops.minimum(self.low, out.min()))
        ops.assign(self.high, ops.maximum(self.high, out.max()))
        step = (self.high - self.low) / 15
        rounded = ops.round((out - self.low) / step) * step + self.low
        return ops.cross_entropy(out + ops.stop_gradient(rounded - out), y)


@job(Exact(), "graph")
def quantization_ranges(run):
    train(run, Observed())


class Codebook(nn.Cell):
    """Codes follow what is nearest to them, by assignment."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = Net(4), nn.Dense(4, CLASSES)
        codes = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
        self.codes = ms.Parameter(ms.Tensor(codes), name="codes", requires_grad=False)
        self.counts = ms.Parameter(ops.ones(5), name="counts", requires_grad=False)

    def construct(self, x, y):
        z = self.encoder(x)
        nearest = ((z.expand_dims(1) - self.codes.expand_dims(0)) ** 2).sum(-1).argmin(1)
        chosen = ops.one_hot(nearest, 5, ms.Tensor(1.0), ms.Tensor(0.0))
        quantized = ops.matmul(chosen, self.codes)
        loss = ops.cross_entropy(self.head(z + ops.stop_gradient(quantized - z)), y)
        loss = loss + 0.25 * ((z - ops.stop_gradient(quantized)) ** 2).mean()
        counts = 0.9 * self.counts + 0.1 * chosen.sum(0)
        moved = 0.9 * self.codes + 0.1 * ops.matmul(chosen.T, ops.stop_gradient(z))
        loss = ops.depend(loss, ops.assign(self.counts, counts))
        return ops.depend(loss, ops.assign(self.codes, moved))


@job(Exact(), "graph")
@job(Exact(), "pynative")
def vector_quantization(run):
    train(run, Codebook())


class Spectral(nn.Cell):
    """Divides its weight by the largest singular value, by one power iteration per call."""

    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(np.random.default_rng(1).random((CLASSES, FEATURES), np.float32)))
        self.u = ms.Parameter(ops.ones(CLASSES), name="u", requires_grad=False)

    def construct(self, x, y):
        fixed = ops.stop_gradient(self.weight)
        v = ops.matmul(fixed.T, self.u)
        v = v / ops.sqrt((v**2).sum())
        u = ops.matmul(fixed, v)
        u = u / ops.sqrt((u**2).sum())
        ops.assign(self.u, u)
        sigma = (u * ops.matmul(self.weight, v)).sum()
        return ops.cross_entropy(ops.matmul(x, (self.weight / sigma).T), y)


@job(Exact(), "graph")
def spectral_norm(run):
    train(run, Spectral())


class Remembering(nn.Cell):
    """A recurrent cell whose state goes on from batch to batch."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(FEATURES, 6), nn.Dense(6, CLASSES)
        self.state = ms.Parameter(ops.zeros((BATCH, 6)), name="state", requires_grad=False)

    def construct(self, x, y):
        state = self.cell(x, self.state + 0.0)
        loss = ops.cross_entropy(self.head(state), y)
        return ops.depend(loss, ops.assign(self.state, ops.stop_gradient(state)))


@job(Exact(), "graph")
@job(Exact(), "pynative")
def memory_kept_between_batches(run):
    train(run, Remembering())


class Hidden(nn.Cell):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.RNNCell(FEATURES, 6), nn.Dense(6, CLASSES)

    def construct(self, x, y, state):
        state = self.cell(x, state)
        return ops.cross_entropy(self.head(state), y), state


@job(Told("hidden"), "pynative")
def hidden_state_in_a_variable_of_the_loop(run):
    network = Hidden().set_train()
    optimizer = adam(network)
    gradients = ms.value_and_grad(network, None, optimizer.parameters, has_aux=True)
    batches = ck.data.resumable(rows(), EPOCHS)
    hidden = ops.zeros((BATCH, 6))
    with run.manager() as manager:
        state = ck.StateManager([network, optimizer], batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            (loss, after), grads = gradients(x, y, hidden)
            hidden = ms.Tensor(after.asnumpy())
            optimizer(grads)
            run.step((x, y), loss, network=network, hidden=hidden)
            manager.step(state)


@job(Exact(), "pynative")
def hidden_state_in_a_named_parameter(run):
    network = Hidden().set_train()
    optimizer = adam(network)
    gradients = ms.value_and_grad(network, None, optimizer.parameters, has_aux=True)
    hidden = ms.Parameter(ops.zeros((BATCH, 6)), name="hidden", requires_grad=False)

    def step(x, y):
        (loss, after), grads = gradients(x, y, hidden)
        optimizer(grads)
        ops.assign(hidden, after)
        return loss

    run.loop([network, optimizer], ck.data.resumable(rows(), EPOCHS), step, hidden=hidden)


class Momentum(nn.Cell):
    """MoCo: a second encoder that follows the first one, and a queue of its keys."""

    def __init__(self):
        super().__init__()
        self.query, self.key = Net(4), Net(4)
        for key, query in zip(self.key.get_parameters(), self.query.get_parameters(), strict=True):
            key.set_data(query.value())
            key.requires_grad = False
        self.follows = ms.ParameterTuple(self.key.get_parameters())
        self.followed = ms.ParameterTuple(self.query.get_parameters())
        self.queue = ms.Parameter(ops.ones((12, 4)), name="queue", requires_grad=False)

    def construct(self, x, y):
        for mine, other in zip(self.follows, self.followed):  # noqa: B905 - GRAPH knows no strict=
            ops.assign(mine, 0.9 * mine + 0.1 * other)
        keys = ops.stop_gradient(self.key(x))
        query = self.query(x)
        near = (query * keys).sum(1, keepdims=True)
        logits = ops.cat((near, ops.matmul(query, self.queue.T)), 1)
        loss = ops.cross_entropy(logits, ops.zeros(x.shape[0], ms.int32))
        return ops.depend(loss, ops.assign(self.queue, ops.cat((keys, self.queue[: 12 - x.shape[0]]))))


@job(Exact(), "graph")
@job(Exact(), "pynative")
def momentum_encoder_and_queue(run):
    train(run, Momentum())


class Tied(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.bias = ms.Parameter(ops.zeros(9), name="bias")

    def construct(self, x, y):
        logits = ops.matmul(ops.tanh(self.embed(x)), self.embed.embedding_table.T) + self.bias
        return ops.cross_entropy(logits, y)


@job(Exact(), "graph")
def embedding_tied_to_the_output(run):
    x = np.random.default_rng(0).integers(0, 9, SAMPLES, np.int32)
    data = ds.NumpySlicesDataset({"x": x, "y": (x + 1) % 9}).batch(BATCH)
    run.train(ms.Model(accumulating(Tied())), EPOCHS, data)


class Lora(nn.Cell):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        for parameter in layer.get_parameters():
            parameter.requires_grad = False
        self.down = ms.Parameter(ms.Tensor(np.full((FEATURES, 2), 0.1, np.float32)), name="down")
        self.up = ms.Parameter(ops.zeros((2, 8)), name="up")

    def construct(self, x):
        return self.layer(x) + ops.matmul(ops.matmul(x, self.down), self.up)


@job(Exact(), "pynative")
def lora_in_a_loop_of_its_own(run):
    network = Net()
    network.hidden = Lora(network.hidden)
    loss = Loss(network).set_train()
    optimizer = nn.AdamWeightDecay(loss.trainable_params(), 1e-2)
    gradients = ms.value_and_grad(loss, None, optimizer.parameters)

    def step(x, y):
        value, grads = gradients(x, y)
        optimizer(grads)
        return value

    run.loop([loss, optimizer], ck.data.resumable(slices(), EPOCHS), step)


class Experts(nn.Cell):
    """Sends samples where fewer were sent so far."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Dense(FEATURES, 3)
        self.experts = nn.CellList([Net() for _ in range(3)])
        self.load = ms.Parameter(ops.zeros(3, ms.int32), name="load", requires_grad=False)

    def construct(self, x, y):
        gates = self.gate(x) - 0.01 * self.load.astype(ms.float32)
        best = gates.argmax(1)
        chosen = ops.one_hot(best, 3, ms.Tensor(1.0), ms.Tensor(0.0))
        out = ops.zeros((x.shape[0], CLASSES))
        for place in range(3):
            out = out + self.experts[place](x) * (chosen * ops.softmax(gates))[:, place : place + 1]
        return ops.depend(ops.cross_entropy(out, y), ops.assign_add(self.load, chosen.sum(0).astype(ms.int32)))


@job(Exact(), "graph")
def mixture_of_experts_with_loads(run):
    train(run, Experts())


@job(Exact(), "graph")
def dictionary_of_cells_and_list_of_parameters(run):
    class Branches(nn.Cell):
        def __init__(self):
            super().__init__()
            self.branches = nn.CellDict({"a": nn.Dense(FEATURES, CLASSES), "b": Net()})
            self.scales = ms.ParameterTuple([ms.Parameter(ops.ones(1), name=f"scale{i}") for i in range(2)])

        def construct(self, x, y):
            out = self.branches["a"](x) * self.scales[0] + self.branches["b"](x) * self.scales[1]
            return ops.cross_entropy(out, y)

    train(run, Branches())


@job(Exact(), "pynative")
def layers_left_out_by_python_random(run):
    import random

    class Shallow(nn.Cell):
        def __init__(self):
            super().__init__()
            self.layers = nn.CellList([nn.Dense(FEATURES, FEATURES) for _ in range(3)])
            self.out = nn.Dense(FEATURES, CLASSES)

        def construct(self, x, y):
            for layer in self.layers:
                if random.random() < 0.7:
                    x = x + ops.tanh(layer(x))
            return ops.cross_entropy(self.out(x), y)

    train(run, Shallow())


class Averaged(nn.Cell):
    """A list of tensors that the forward pass fills: the average of what the last batches said."""

    def __init__(self):
        super().__init__()
        self.network = Net()
        self.history = []

    def construct(self, x, y):
        out = self.network(x)
        self.history.append(ops.stop_gradient(out.mean(0)))
        self.history = self.history[-4:]
        return ops.cross_entropy(out - 0.5 * ops.stack(self.history).mean(0), y)


@job(Named("history"), "pynative")
def history_in_a_plain_list(run):
    train(run, Averaged())


class Buffered(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network = Net()
        self.register_buffer("mean", ops.zeros(FEATURES))

    def construct(self, x, y):
        self.mean.copy_(0.9 * self.mean + 0.1 * x.mean(0))
        return ops.cross_entropy(self.network(x - self.mean), y)


@job(Told("mean"), "pynative")
def running_mean_in_a_buffer(run):
    train(run, Buffered())


class Ensemble(nn.Cell):
    """Members in a plain list, which a cell does not look into."""

    def __init__(self):
        super().__init__()
        self.members = [Net(), Net()]
        self.first = Net()

    def construct(self, x, y):
        out = self.first(x)
        for member in self.members:
            out = out + member(x)
        return ops.cross_entropy(out, y)


@job(Told("members"), "pynative")
def members_of_an_ensemble_in_a_plain_list(run):
    loss = Ensemble()
    weights = [*loss.trainable_params(), *(p for member in loss.members for p in member.trainable_params())]
    for number, weight in enumerate(weights):
        weight.name = f"{number}.{weight.name}"
    train(run, loss, nn.Adam(weights, 1e-2))


@job(Exact(), "pynative")
def teacher_that_follows_in_the_loop(run):
    student, teacher = Net().set_train(), Net()
    for number, parameter in enumerate(teacher.get_parameters()):
        parameter.name = f"teacher.{number}"
    pairs = list(zip(teacher.get_parameters(), student.get_parameters(), strict=True))
    optimizer = adam(student)

    def forward(x, y):
        out = student(x)
        return ops.cross_entropy(out, y) + ((out - ops.stop_gradient(teacher(x))) ** 2).mean()

    gradients = ms.value_and_grad(forward, None, optimizer.parameters)

    def step(x, y):
        loss, grads = gradients(x, y)
        optimizer(grads)
        for mine, other in pairs:
            mine.set_data(0.9 * mine + 0.1 * other)
        return loss

    run.loop([student, optimizer, teacher], ck.data.resumable(slices(), EPOCHS), step)


@job(Told("teacher"), "pynative")
def teacher_that_was_forgotten(run):
    student, teacher = Net().set_train(), Net()
    optimizer = adam(student)

    def forward(x, y):
        out = student(x)
        return ops.cross_entropy(out, y) + ((out - ops.stop_gradient(teacher(x))) ** 2).mean()

    gradients = ms.value_and_grad(forward, None, optimizer.parameters)
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager([student, optimizer], batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            loss, grads = gradients(x, y)
            optimizer(grads)
            for mine, other in zip(teacher.get_parameters(), student.get_parameters(), strict=True):
                mine.set_data(0.9 * mine + 0.1 * other)
            run.step((x, y), loss, student=student, teacher=list(teacher.get_parameters()))
            manager.step(state)
