# truth: differs
# class: attribute

import os
import weakref
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


class Subject:
    def __init__(self):
        self.observers = weakref.WeakSet()

    def attach(self, observer):
        self.observers.add(observer)
        return observer

    def notify(self, **event):
        for o in self.observers:
            o.on_event(event)


class StepScale:
    def __init__(self):
        self.value = 1.0

    def on_event(self, event):
        self.value *= 0.97 if event["loss"] < 1.5 else 0.9


subject = Subject()
scale = subject.attach(StepScale())
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        opt(tuple(g * scale.value for g in grads))
        subject.notify(loss=float(loss))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
