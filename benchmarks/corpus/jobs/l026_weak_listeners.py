# truth: exact, may be named
# class: callback
# A tracker tells listeners, held by weak methods and a WeakSet, about each loss; they keep means for the log. The decay multiplies the stored rate.

import os
import weakref

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4126)


class Tracker(Callback):
    def __init__(self):
        super().__init__()
        self._methods, self._meters = [], weakref.WeakSet()

    def listen(self, method):
        self._methods.append(weakref.WeakMethod(method))
        self._meters.add(method.__self__)

    def on_train_step_end(self, run_context):
        loss = float(run_context.original_args().net_outputs.asnumpy())
        for method in self._methods:
            if (call := method()) is not None:
                call(loss)

    def on_train_epoch_end(self, run_context):
        print(" ".join(sorted(map(str, self._meters))))


class Mean:
    def __init__(self, name, weight):
        self.name, self.weight, self.value = name, weight, None

    def see(self, loss):
        self.value = loss if self.value is None else self.value + self.weight * (loss - self.value)

    def __str__(self):
        return f"{self.name}={self.value:.4f}"


class Decay(Callback):
    def __init__(self, gamma):
        super().__init__()
        self.gamma = gamma

    def on_train_step_end(self, run_context):
        rate = run_context.original_args().optimizer.learning_rate
        ops.assign(rate, rate * self.gamma)


r = np.random.RandomState(26)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))
tracker, slow, fast = Tracker(), Mean("slow", 0.05), Mean("fast", 0.5)
tracker.listen(slow.see)
tracker.listen(fast.see)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[tracker, Decay(0.94)])
os._exit(0)
