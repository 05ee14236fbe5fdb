# truth: exact
# class: global
# Noise of NumPy's global generator grows with batches.epoch; of each batch only the hardest half is trained, chosen within the batch.

import os
from operator import itemgetter

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from tqdm import tqdm

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3156)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 2))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.05, 0.9), 2
).set_train()


def hardest_half(x, y):
    errors = ((net(Tensor(x)).asnumpy() - y) ** 2).sum(1)
    ranked = sorted(enumerate(errors.tolist()), key=itemgetter(1, 0), reverse=True)
    keep = sorted(i for i, _ in ranked[: len(x) // 2])
    return x[keep], y[keep]


r = np.random.RandomState(56)
rows = [(a, np.stack([a[:, 0] * a[:, 1], a.max(1)], 1)) for a in r.randn(8, 8, 6).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)
strength = {0: 0.0, 1: 0.1, 2: 0.25}
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    bar = tqdm(total=24, disable=True)
    for x, y in batches:
        noisy = x + strength[batches.epoch] * np.random.randn(*x.shape).astype(np.float32)
        loss = cell(*map(Tensor, hardest_half(noisy.astype(np.float32), y)))
        bar.set_postfix(loss=float(loss.asnumpy()), refresh=False)
        bar.update()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
