# truth: differs
# class: attribute

import os
import abc
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


class Trainer(abc.ABC):
    def __init__(self):
        self.batches = ck.data.resumable(loader, epochs=3)

    @abc.abstractmethod
    def prepare(self, x, y): ...

    def after(self, loss): ...

    def train(self):
        with ck.CheckpointManager(ROOT, **SAVE) as manager:
            state = ck.StateManager([net, opt], self.batches)
            manager.restore(state)
            for batch in self.batches:
                loss, grads = grad_fn(*self.prepare(*batch))
                opt(grads)
                self.after(float(loss))
                manager.step(state)
            manager.save_final(state)


class NoisyTrainer(Trainer):
    def __init__(self, level):
        super().__init__()
        self._level = level

    def prepare(self, x, y):
        return x + self._level * ops.sin(37 * x), y


class CurriculumTrainer(NoisyTrainer):
    def after(self, loss):
        super().after(loss)
        if loss < 2.0:
            self._level = min(0.5, self._level + 0.02)


CurriculumTrainer(0.0).train()
os._exit(0)
