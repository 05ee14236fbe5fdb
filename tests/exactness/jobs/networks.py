"""Networks that keep something in parameters, share it, or are changed in mid run."""

from __future__ import annotations

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.experimental import optim

import ckptkit as ck
from exactness.jobs.parts import (
    BATCH,
    CLASSES,
    EPOCHS,
    FEATURES,
    SAMPLES,
    K,
    Loss,
    Net,
    accumulating,
    adam,
    slices,
    updating,
)
from exactness.jobs.run import job


class Contrastive(nn.Cell):
    """A bank of earlier embeddings is what the present ones are told from."""

    def __init__(self, size=24):
        super().__init__()
        self.encoder, self.size = Net(4), size
        self.bank = ms.Parameter(ops.zeros((size, 4)), name="bank", requires_grad=False)
        self.place = ms.Parameter(ms.Tensor(0, ms.int32), name="place", requires_grad=False)

    def construct(self, x, y):
        key = ops.L2Normalize(axis=1)(self.encoder(x))
        near = ops.matmul(key, self.encoder(x * 1.01).T) / 0.2
        far = ops.matmul(key, self.bank.T) / 0.2
        loss = ops.cross_entropy(ops.cat((near, far), 1), ops.arange(x.shape[0]))
        index = (self.place + ops.arange(x.shape[0]).astype(ms.int32)) % self.size
        written = ops.tensor_scatter_elements(self.bank, ops.tile(index.expand_dims(1), (1, 4)), ops.stop_gradient(key))
        loss = ops.depend(loss, ops.assign(self.bank, written))
        return ops.depend(loss, ops.assign(self.place, (self.place + x.shape[0]) % self.size))


@job("pynative")
def contrastive_memory_bank(run):
    run.train(accumulating(Contrastive()), EPOCHS, slices())


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


@job("graph")
def memory_kept_between_batches(run):
    run.train(accumulating(Remembering()), EPOCHS, slices())


class Tied(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.bias = ms.Parameter(ops.zeros(9), name="bias")

    def construct(self, x, y):
        logits = ops.matmul(ops.tanh(self.embed(x)), self.embed.embedding_table.T) + self.bias
        return ops.cross_entropy(logits, y)


@job("graph")
def embedding_tied_to_the_output(run):
    x = np.random.default_rng(0).integers(0, 9, SAMPLES, np.int32)
    run.train(accumulating(Tied()), EPOCHS, ds.NumpySlicesDataset({"x": x, "y": (x + 1) % 9}).batch(BATCH))


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


@job("pynative")
def lora_in_a_loop_of_its_own(run):
    network = Net()
    network.hidden = Lora(network.hidden)
    loss = Loss(network).set_train()
    optimizer = nn.AdamWeightDecay(loss.trainable_params(), 1e-2)
    run.loop([loss, optimizer], slices(), updating(loss, optimizer))


class Tokens(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 6, padding_idx=0), nn.Dense(6, 9)

    def construct(self, x, y):
        mask = (y != 0).astype(ms.float32)
        logits = self.head(ops.tanh(self.embed(x))).reshape(-1, 9)
        loss = ops.cross_entropy(logits, y.reshape(-1), reduction="none").reshape(y.shape)
        return (loss * mask).sum(), mask.sum()


@job("graph")
def means_over_tokens_with_padding(run):
    x = np.random.default_rng(1).integers(0, 9, (SAMPLES, 5), np.int32)
    loss = Tokens()
    cell = ck.AccumulationTrainCell(loss, adam(loss), K, normalize="weights", clip_norm=0.5, remainder="drop")
    run.train(cell, EPOCHS, ds.NumpySlicesDataset({"x": x, "y": np.roll(x, -1, 1)}, shuffle=True).batch(BATCH))


def switched_once(run, switch, optimizer_class):
    """Everything is given by name, and the ninth micro-step switches something for all that follow."""
    network = nn.SequentialCell(nn.Dense(FEATURES, 8), nn.BatchNorm1d(8), nn.Dense(8, 3)).set_train()
    optimizer = optimizer_class(network.trainable_params(), 1e-2)
    done = ms.Parameter(ms.Tensor(0, ms.int32), name="done", requires_grad=False)
    update = updating(lambda x, y: ops.cross_entropy(network(x), y), optimizer)

    def step(x, y):
        if int(done) == 8:
            switch(network, optimizer)
        ops.assign_add(done, ms.Tensor(1, ms.int32))
        return update(x, y)

    run.loop([], slices(), step, network=network, optimizer=optimizer, done=done)


@job("pynative")
def layer_frozen_of_a_network_given_by_name(run):
    switched_once(run, lambda network, _: setattr(network[0].weight, "requires_grad", False), nn.Adam)


@job("pynative")
def norm_in_evaluation_of_a_network_given_by_name(run):
    switched_once(run, lambda network, _: network[1].set_train(False), nn.Adam)


@job("pynative")
def weight_decay_of_an_optimizer_given_by_name(run):
    switched_once(run, lambda _, optimizer: optimizer.param_groups[0].update(weight_decay=0.3), optim.SGD)
