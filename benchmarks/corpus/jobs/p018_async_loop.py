# truth: exact
# class: outside
# The loop runs in asyncio next to a small task that reports; nothing of that touches the training.

import asyncio
import os
import time

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(118)

r = np.random.RandomState(18)
x = r.randn(64, 6).astype(np.float32)
y = (x[:, :1] - x[:, 1:2] * x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(net.trainable_params(), 5e-3), 3, clip_norm=0.5).set_train()
status = {"steps": 0, "loss": None, "since": time.monotonic()}


async def report():
    while True:
        await asyncio.sleep(0.05)
        if status["loss"] is not None:
            rate = status["steps"] / (time.monotonic() - status["since"])
            print(f"{status['steps']} steps, {rate:.1f} per second, loss {status['loss']:.4f}")


async def main():
    reporter = asyncio.create_task(report())
    batches = ck.data.resumable(train, epochs=5)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager(cell, batches)
        manager.restore(state)
        for xb, yb in batches:
            value = cell(xb, yb)
            status["steps"] += 1
            status["loss"] = float(value.asnumpy())
            manager.step(state)
            await asyncio.sleep(0)
        manager.save_final(state)
    reporter.cancel()


asyncio.run(main())
os._exit(0)
