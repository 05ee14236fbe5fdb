# truth: exact
# class: global
# A codebook moved by averages (counts and sums are Parameters); an unused code is put on a random row by Python's global random.

import os
import random

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3134)
random.seed(3134)


class Codebook(nn.Cell):
    def __init__(self, codes, width, decay=0.8):
        super().__init__()
        start = np.random.RandomState(0).randn(codes, width).astype(np.float32)
        self.codes = Parameter(Tensor(start), name="codes", requires_grad=False)
        self.counts = Parameter(Tensor(np.ones(codes, np.float32)), name="counts", requires_grad=False)
        self.sums = Parameter(Tensor(start.copy()), name="sums", requires_grad=False)
        self.decay = decay

    def nearest(self, z):
        d = ((z[:, None, :] - self.codes.asnumpy()[None]) ** 2).sum(-1)
        return d.argmin(1)

    def learn(self, z, chosen):
        hot = np.eye(len(self.counts), dtype=np.float32)[chosen]
        counts = self.decay * self.counts.asnumpy() + (1 - self.decay) * hot.sum(0)
        sums = self.decay * self.sums.asnumpy() + (1 - self.decay) * hot.T @ z
        for k in np.flatnonzero(counts < 0.3):
            counts[k], sums[k] = 1.0, z[random.randrange(len(z))]
        ops.assign(self.counts, Tensor(counts))
        ops.assign(self.sums, Tensor(sums.astype(np.float32)))
        ops.assign(self.codes, Tensor((sums / counts[:, None]).astype(np.float32)))

    def construct(self, z):
        values = z.asnumpy()
        chosen = self.nearest(values)
        picked = Tensor(self.codes.asnumpy()[chosen])
        commit = ((z - picked) ** 2).mean()
        if self.training:
            self.learn(values, chosen)
        return z + ops.stop_gradient(picked - z), commit


class Auto(nn.Cell):
    def __init__(self):
        super().__init__()
        self.enc, self.book, self.dec = nn.Dense(6, 3), Codebook(5, 3), nn.Dense(3, 6)

    def construct(self, x):
        z, commit = self.book(ops.tanh(self.enc(x)))
        return ((self.dec(z) - x) ** 2).mean() + 0.25 * commit


net = Auto()
cell = nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 0.02)).set_train()
rows = [(Tensor(a),) for a in np.random.RandomState(34).randn(8, 7, 6).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for (x,) in batches:
        cell(x)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
