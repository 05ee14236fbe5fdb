# truth: differs
# class: iterator
# An asyncio actor owns the loss history in its coroutine; each step is a message to it and its answer.

import asyncio
import hashlib
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(18)


async def actor(inbox):
    smooth = None
    while True:
        value, reply = await inbox.get()
        smooth = value if smooth is None else 0.8 * smooth + 0.2 * value
        reply.set_result(value / (smooth + 1e-6))


async def main():
    r = np.random.RandomState(8)
    rows = [
        (ms.Tensor(r.randn(4, 4).astype(np.float32)), ms.Tensor(r.randn(4, 1).astype(np.float32))) for _ in range(8)
    ]
    net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
    opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
    mse = nn.MSELoss()
    grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
    inbox = asyncio.Queue()
    task = asyncio.get_running_loop().create_task(actor(inbox))
    batches = ck.data.resumable(rows, epochs=4)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager([net, opt], batches)
        manager.restore(state)
        for a, b in batches:
            loss, grads = grad_fn(a, b)
            reply = asyncio.get_running_loop().create_future()
            await inbox.put((float(loss), reply))
            ratio = await reply
            opt(tuple(g * min(2.0, ratio) for g in grads))
            manager.step(state)
        manager.save_final(state)
    task.cancel()
    print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)


asyncio.run(main())
os._exit(0)
