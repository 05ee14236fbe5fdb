# truth: exact
# class: random
# Every batch gets a child of one seed sequence; the sequence and a python generator are given by name.

import hashlib
import os
import random

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(62)
seeds = np.random.SeedSequence(62)
dice = random.Random(62)

r = np.random.RandomState(52)
rows = [(r.randn(6, 5).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(9)]
net = nn.SequentialCell(nn.Dense(5, 10), nn.ReLU(), nn.Dense(10, 1))
opt = nn.SGD(net.trainable_params(), 0.05, momentum=0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, seeds=seeds, dice=dice)
    manager.restore(state)
    for a, b in batches:
        (child,) = seeds.spawn(1)
        noise = np.random.default_rng(child).normal(0, 0.2, a.shape)
        if dice.random() < 0.3:
            noise = noise * dice.gauss(1, 0.1)
        loss, grads = grad_fn(ms.Tensor((a + noise).astype(np.float32)), ms.Tensor(b))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
