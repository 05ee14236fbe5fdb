# truth: differs
# class: callback

import os
import concurrent.futures
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
VX = rng0.normal(size=(16, 6)).astype(np.float32)
VY = (VX[:, :1] * 0.7 - VX[:, 1:2] ** 2).astype(np.float32)
valid_data = ds.NumpySlicesDataset((VX, VY), ["x", "y"], shuffle=False).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)


def evaluate(weights):
    w1, b1, w2, b2 = weights
    pred = np.tanh(VX @ w1.T + b1) @ w2.T + b2
    return float(((pred - VY) ** 2).mean())


class AsyncEval(ms.Callback):
    def __init__(self):
        super().__init__()
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.pending = None
        self.best = float("inf")

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        if self.pending is not None:
            score = round(self.pending.result(), 4)
            if score > self.best:
                ops.assign(params.optimizer.learning_rate, params.optimizer.learning_rate * 0.95)
            self.best = min(self.best, score)
        self.pending = self.pool.submit(evaluate, [p.asnumpy().copy() for p in net.trainable_params()])


ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, train_data, callbacks=[AsyncEval()])
os._exit(0)
