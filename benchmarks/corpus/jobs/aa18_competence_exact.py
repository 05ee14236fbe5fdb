# truth: exact
# class: attribute

import os
import math
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(21)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (np.abs(X).argmax(1) % 4).astype(np.int32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 4))

opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def forward(x, y, lam):
    losses = ops.cross_entropy(net(x), y, reduction="none")
    v = (ops.stop_gradient(losses) < lam).astype(ms.float32)
    return (v * losses).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)


class Competence:
    def __init__(self, c0, total):
        self.c0, self.total = c0, total

    def at(self, step):
        return min(1.0, math.sqrt(step * (1 - self.c0**2) / self.total + self.c0**2))


competence = Competence(0.3, 20)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        loss, grads = grad_fn(x, y, 3 * competence.at(step))
        opt(grads)
        if step % 5 == 0:
            print(f"step {step}: loss {float(loss):.4f} competence {competence.at(step):.2f}")
        manager.step(state)
    manager.save_final(state)
os._exit(0)
