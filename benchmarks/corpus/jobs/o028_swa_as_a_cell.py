# truth: exact
# class: attribute
# Stochastic weight averaging: the running mean is a network of its own in the list of cells, and how many states it holds is an int given with ck.attributes. The mean is what counts at the end.

import os
import types

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3528)


def make_net(prefix):
    net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
    net.update_parameters_name(prefix)
    return net


r = np.random.RandomState(28)
rows = []
for _ in range(10):
    x = r.randn(6, 5).astype(np.float32)
    y = np.abs(x[:, :1]) - x[:, 1:2] * x[:, 2:3] + 0.3 * r.randn(6, 1)
    rows.append((ms.Tensor(x), ms.Tensor(y.astype(np.float32))))

net, mean_net = make_net("net."), make_net("mean.")
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Momentum(net.trainable_params(), 0.05, 0.9), accumulation_steps=2).set_train()
swa = types.SimpleNamespace(states=0)

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([cell, mean_net], batches, swa=ck.attributes(swa, "states"))
    point = manager.restore(state)
    for number, (x, y) in enumerate(batches, point.batches_delivered):
        cell(x, y)
        if number >= 8 and cell.updated:
            manager.fence()
            share = 1 / (swa.states + 1)
            for mean, p in zip(mean_net.get_parameters(), net.get_parameters()):
                ops.assign(mean, (1 - share) * mean + share * p)
            swa.states += 1
        manager.step(state)
    manager.save_final(state)
print("states in the mean:", swa.states)
os._exit(0)
