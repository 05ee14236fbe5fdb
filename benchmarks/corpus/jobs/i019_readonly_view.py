# truth: differs
# class: attribute
# Losses read their coefficients through a MappingProxyType; the owner of the dict behind it raises the sparsity coefficient step by step.

import os
from types import MappingProxyType

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(319)


class Coefficients:
    def __init__(self, **initial):
        self.__values = dict(initial)
        self.view = MappingProxyType(self.__values)

    def approach(self, name, goal, speed):
        self.__values[name] += speed * (goal - self.__values[name])


class SparseCoder:
    def __init__(self, coefficients):
        self.c = coefficients
        self.encoder = nn.SequentialCell(nn.Dense(6, 10), nn.ReLU())
        self.decoder = nn.Dense(10, 6)

    def loss(self, x):
        code = self.encoder(x)
        return ((self.decoder(code) - x) ** 2).mean() + self.c["l1"] * ops.abs(code).mean()


owner = Coefficients(l1=0.0, l2=1e-4)
coder = SparseCoder(owner.view)
params = coder.encoder.trainable_params() + coder.decoder.trainable_params()
opt = nn.Adam(params, 0.01)
vg = ms.value_and_grad(coder.loss, None, params)
r = np.random.RandomState(50)
basis = r.randn(3, 6)
rows = [(ms.Tensor((r.randn(8, 3) @ basis).astype(np.float32)),) for _ in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([coder.encoder, coder.decoder, opt], batches)
    manager.restore(state)
    for (x,) in batches:
        loss, grads = vg(x)
        opt(grads)
        owner.approach("l1", goal=0.5, speed=0.15)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
