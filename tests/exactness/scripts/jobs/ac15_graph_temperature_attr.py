# exact, named
import os
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2).astype(np.float32)
train_data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)


class Gated(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.gate = nn.Dense(6, 8), nn.Dense(6, 8), nn.Dense(6, 8)
        self.out = nn.Dense(8, 1)
        self.temperature = 2.0

    def construct(self, x):
        g = ops.sigmoid(self.gate(x) / self.temperature)
        return self.out(g * self.a(x) + (1 - g) * self.b(x))


net = Gated()
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)


class Anneal(ms.Callback):
    def on_train_step_end(self, run_context):
        cell = run_context.original_args().network
        net.temperature = max(0.5, net.temperature * 0.95)


ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, train_data, callbacks=[Anneal()])
os._exit(0)
