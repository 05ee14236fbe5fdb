# truth: differs
# class: attribute
# A LARS-like trust ratio smooths each layer's gradient norm; the smoothed norms lie in a WeakKeyDictionary from cell to number.

import os
import weakref

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(30)


class Layer(nn.Cell):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.dense = nn.Dense(fan_in, fan_out)

    def construct(self, x):
        return self.dense(x)


class TrustRatios:
    def __init__(self):
        self._norms = weakref.WeakKeyDictionary()

    def __call__(self, layer, norm):
        key = layer.dense.weight.name
        tag = self._tag(layer)
        smooth = self._norms.get(tag)
        self._norms[tag] = norm if smooth is None else 0.8 * smooth + 0.2 * norm
        weight = float(np.linalg.norm(layer.dense.weight.asnumpy()))
        return 0.1 * weight / (self._norms[tag] + 1e-3), key

    def _tag(self, layer):
        return layer.tag


class Tag:
    def __init__(self, name):
        self.name = name


first, second = Layer(8, 6), Layer(6, 1)
layers = [first, second]
for name, layer in zip(("first", "second"), layers):
    layer.tag = Tag(name)
net = nn.SequentialCell(first, nn.Tanh(), second)
mse = nn.MSELoss()
opt = nn.SGD(net.trainable_params(), learning_rate=0.3)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
trust = TrustRatios()

r = np.random.RandomState(15)
rows = []
for _ in range(8):
    x = r.randn(6, 8).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] ** 2).astype(np.float32))))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(x, y)
        scaled = []
        for i, layer in enumerate(layers):  # weight and bias of each layer follow each other
            pair = grads[2 * i : 2 * i + 2]
            ratio, _ = trust(layer, float(np.sqrt(sum(float((g * g).sum().asnumpy()) for g in pair))))
            scaled += [g * ratio for g in pair]
        opt(tuple(scaled))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
