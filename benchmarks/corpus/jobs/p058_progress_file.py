# truth: differs
# class: attribute
# The margin of a hinge loss grows with progress; the progress is kept in a small JSON file beside the run.

import json
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(158)


class Progress:
    def __init__(self, path):
        self.path = path
        self.data = {"batches": 0, "margin": 0.2}
        if os.path.exists(path):
            with open(path) as file:
                self.data = json.load(file)

    def advance(self, loss):
        self.data["batches"] += 1
        if loss < 2.0:
            self.data["margin"] = min(2.0, self.data["margin"] * 1.08)
        with open(self.path + ".new", "w") as file:
            json.dump(self.data, file)
        os.replace(self.path + ".new", self.path)


r = np.random.RandomState(59)
sign = np.where(r.rand(80, 1) < 0.5, -1, 1)
x = (r.randn(80, 6) + 0.7 * sign).astype(np.float32)
train = ds.NumpySlicesDataset((x, sign.astype(np.float32)), ["x", "sign"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.03, 0.9)
grad_fn = ms.value_and_grad(lambda x, s, m: ops.relu(m - s * net(x)).mean(), None, net.trainable_params())
os.makedirs(os.path.dirname(os.environ["ROOT"]), exist_ok=True)
progress = Progress(os.environ["ROOT"] + "-progress.json")

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for xb, sb in batches:
        loss, grads = grad_fn(xb, sb, ms.Tensor(progress.data["margin"], ms.float32))
        optimizer(grads)
        progress.advance(float(loss.asnumpy()))
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
