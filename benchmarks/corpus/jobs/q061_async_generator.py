# truth: differs
# class: variable
# An asynchronous generator keeps the smoothed loss; the loop sends it each loss and gets the next factor.

import asyncio
import hashlib
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(61)


async def factors():
    smooth = 1.0
    while True:
        smooth = 0.8 * smooth + 0.2 * (yield smooth)


async def main():
    r = np.random.RandomState(61)
    rows = [
        (ms.Tensor(r.randn(5, 4).astype(np.float32)), ms.Tensor(r.randn(5, 1).astype(np.float32))) for _ in range(8)
    ]
    net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
    opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
    mse = nn.MSELoss()
    grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
    factor = factors()
    await factor.asend(None)
    batches = ck.data.resumable(rows, epochs=4)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager([net, opt], batches)
        manager.restore(state)
        for a, b in batches:
            loss, grads = grad_fn(a, b)
            scale = await factor.asend(float(loss))
            opt(tuple(g * scale for g in grads))
            manager.step(state)
        manager.save_final(state)
    print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)


asyncio.run(main())
os._exit(0)
