# truth: differs
# class: global

import os
import random
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

random.seed(12)
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.01, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)
population = [{"lr": 0.01 * 2**i, "score": None} for i in range(4)]


def exploit(population):
    ranked = sorted(population, key=lambda m: m["score"])
    worst, best = ranked[-1], ranked[0]
    worst["lr"] = best["lr"] * random.choice([0.8, 1.25])
    worst["score"] = None


batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        member = population[i % len(population)]
        ops.assign(opt.learning_rate, Tensor(member["lr"], ms.float32))
        loss, grads = grad_fn(x, y)
        opt(grads)
        member["score"] = float(loss)
        if all(m["score"] is not None for m in population):
            exploit(population)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
