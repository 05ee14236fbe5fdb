# truth: exact
# class: callback
# The evaluation before is kept in a Parameter of the network, next to a count of bad ones; a callback sets the rate from both.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3112)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
        self.last_score = Parameter(Tensor(-1.0, ms.float32), name="last_score", requires_grad=False)
        self.bad = Parameter(Tensor(0, ms.int32), name="bad_count", requires_grad=False)

    def construct(self, x):
        return self.body(x)


class ScoreRate(Callback):
    """keeps nothing by itself"""

    def __init__(self, net, opt):
        super().__init__()
        self.net, self.opt = net, opt

    def on_train_epoch_end(self, run_context):
        results = run_context.original_args().get("eval_results") or {}
        if "mse" not in results:
            return
        score, last = float(results["mse"]), float(self.net.last_score.asnumpy())
        if last > 0 and score > 0.9 * last:
            ops.assign_add(self.net.bad, Tensor(1, ms.int32))
        ops.assign(self.net.last_score, Tensor(score, ms.float32))
        ops.assign(self.opt.learning_rate, Tensor(0.04 * 0.7 ** int(self.net.bad.asnumpy()), ms.float32))


r = np.random.RandomState(12)
x = r.rand(48, 4).astype(np.float32)
y = np.exp(-x.sum(1, keepdims=True)).astype(np.float32)
train = ds.NumpySlicesDataset((x[:32], y[:32]), ["x", "y"], shuffle=True).batch(8)
valid = ds.NumpySlicesDataset((x[32:], y[32:]), ["x", "y"], shuffle=False).batch(16)
net = Net()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.04, momentum=0.9)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.fit(ms.Model(net, nn.MSELoss(), opt, metrics={"mse"}), 6, train, valid, callbacks=[ScoreRate(net, opt)])
os._exit(0)
