# differs, named
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
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)


class Clock:
    def __init__(self):
        self.ticks = 0


class Warmup:
    def __init__(self, clock):
        self.clock = clock

    def rate(self):
        self.clock.ticks += 1
        return 0.05 * min(1.0, self.clock.ticks / 20)


class RateCallback(ms.Callback):
    def __init__(self, strategy):
        super().__init__()
        self.strategy = strategy

    def on_train_step_begin(self, run_context):
        ops.assign(run_context.original_args().optimizer.learning_rate, Tensor(self.strategy.rate(), ms.float32))


ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, train_data, callbacks=[RateCallback(Warmup(Clock()))])
os._exit(0)
