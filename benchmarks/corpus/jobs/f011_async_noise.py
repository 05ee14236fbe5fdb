# truth: differs
# class: attribute
# The loop is an asyncio program; an async generator lowers the input noise whenever the loss improves on its best.

import asyncio
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(14)


async def noise_levels(inbox, start=0.5):
    level, best = start, float("inf")
    while True:
        yield level
        loss = await inbox.get()
        if loss < best:
            best = loss
            level *= 0.9
        else:
            level = min(start, level * 1.05)


def pattern(epoch_batch):
    """Fixed pattern that the noise level scales."""
    i = np.arange(8 * 4).reshape(4, 8)
    return np.cos(i * 1.7 + epoch_batch).astype(np.float32)


def build():
    net = nn.WithLossCell(
        nn.SequentialCell(nn.Dense(8, 12), nn.LeakyReLU(), nn.Dense(12, 8)),
        nn.MSELoss(),
    )
    return ck.AccumulationTrainCell(net, nn.AdamWeightDecay(net.trainable_params(), 0.01), 1).set_train()


async def train():
    cell = build()
    r = np.random.RandomState(0)
    clean = [r.rand(4, 8).astype(np.float32) for _ in range(8)]
    batches = ck.data.resumable(clean, epochs=3)
    inbox = asyncio.Queue()
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager(cell, batches)
        point = manager.restore(state)
        levels = noise_levels(inbox)
        for n, x in enumerate(batches, point.batches_delivered):
            level = await levels.__anext__()
            noisy = x + level * pattern(n)
            loss = cell(ms.Tensor(noisy, ms.float32), ms.Tensor(x))
            await inbox.put(float(loss.asnumpy()))
            manager.step(state)
        manager.save_final(state)


asyncio.run(train())
os._exit(0)
