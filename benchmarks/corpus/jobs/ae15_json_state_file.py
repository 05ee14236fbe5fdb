# truth: differs
# class: attribute

import os
import json, pathlib
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
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)


class FileCounter:
    """A tiny persistent store, to survive restarts."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def read(self):
        return json.loads(self.path.read_text()) if self.path.exists() else {"n": 0, "scale": 1.0}

    def write(self, value):
        self.path.write_text(json.dumps(value))


store = FileCounter(os.path.dirname(ROOT) + "/control.json")
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        control = store.read()
        loss, grads = grad_fn(x, y)
        opt(tuple(g * control["scale"] for g in grads))
        store.write({"n": control["n"] + 1, "scale": control["scale"] * 0.95})
        manager.step(state)
    manager.save_final(state)
os._exit(0)
