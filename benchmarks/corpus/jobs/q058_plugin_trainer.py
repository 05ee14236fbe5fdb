# truth: exact
# class: attribute
# A trainer framework with plugins; the trainer gathers the state of its plugins in one state_dict.

import hashlib
import os
from abc import ABC

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(68)


class Plugin(ABC):
    name = "plugin"

    def before(self, trainer, batch):
        return batch

    def grads(self, trainer, grads):
        return grads

    def after(self, trainer, loss):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Clip(Plugin):
    name = "clip"

    def __init__(self):
        self.norms = []

    def grads(self, trainer, grads):
        norm = float(sum((g * g).sum() for g in grads)) ** 0.5
        self.norms = (self.norms + [norm])[-10:]
        return tuple(g * min(1.0, float(np.median(self.norms)) / norm) for g in grads)

    def state_dict(self):
        return {"norms": self.norms}

    def load_state_dict(self, state):
        self.norms = list(state["norms"])


class InputNoise(Plugin):
    name = "noise"

    def __init__(self):
        self.sigma = 0.3

    def before(self, trainer, batch):
        a, b = batch
        return a + ms.Tensor(np.random.normal(0, self.sigma, a.shape).astype(np.float32)), b

    def after(self, trainer, loss):
        self.sigma = 0.98 * self.sigma

    def state_dict(self):
        return {"sigma": self.sigma}

    def load_state_dict(self, state):
        self.sigma = state["sigma"]


class Display(Plugin):
    name = "display"

    def after(self, trainer, loss):
        print(f"loss {float(loss):.4f}")


class Trainer:
    def __init__(self, net, optimizer, loss_fn, plugins):
        self.net, self.optimizer, self.plugins = net, optimizer, plugins
        self.grad_fn = ms.value_and_grad(lambda a, b: loss_fn(net(a), b), None, optimizer.parameters)

    def state_dict(self):
        return {p.name: p.state_dict() for p in self.plugins}

    def load_state_dict(self, state):
        for p in self.plugins:
            p.load_state_dict(state[p.name])

    def fit(self, data, epochs, root):
        options = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
        for batch in ck.loop(
            root, data, epochs=epochs, train=[self.net, self.optimizer], stateful={"trainer": self}, **options
        ):
            for p in self.plugins:
                batch = p.before(self, batch)
            loss, grads = self.grad_fn(*batch)
            for p in self.plugins:
                grads = p.grads(self, grads)
            self.optimizer(grads)
            for p in self.plugins:
                p.after(self, loss)


r = np.random.RandomState(58)
x = r.randn(60, 5).astype(np.float32)
y = np.maximum(x[:, :1], 0).astype(np.float32)
net = nn.SequentialCell(nn.Dense(5, 10), nn.ReLU(), nn.Dense(10, 1))
trainer = Trainer(net, nn.Adam(net.trainable_params(), 0.01), nn.MSELoss(), [InputNoise(), Clip(), Display()])
trainer.fit(ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6), 3, os.environ["ROOT"])
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
