# truth: exact
# class: attribute
# A task clips what the loop sends it and keeps nothing; another one counts heartbeats for the log.

import asyncio
import hashlib
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(63)


async def clipper(inbox):
    while True:
        value, reply = await inbox.get()
        reply.set_result(max(0.2, min(1.5, value)))


async def heart():
    beats = 0
    while True:
        await asyncio.sleep(0.01)
        beats += 1
        print("alive", beats)


async def main():
    r = np.random.RandomState(63)
    rows = [
        (ms.Tensor(r.randn(5, 4).astype(np.float32)), ms.Tensor(r.randn(5, 1).astype(np.float32))) for _ in range(8)
    ]
    net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
    opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
    mse = nn.MSELoss()
    grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
    inbox = asyncio.Queue()
    tasks = [asyncio.create_task(clipper(inbox)), asyncio.create_task(heart())]
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
            scale = await reply
            opt(tuple(g * scale for g in grads))
            manager.step(state)
        manager.save_final(state)
    for task in tasks:
        task.cancel()
    print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)


asyncio.run(main())
os._exit(0)
