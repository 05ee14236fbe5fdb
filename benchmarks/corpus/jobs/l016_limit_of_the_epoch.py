# truth: exact
# class: callback
# Model.fit: after each evaluation its error is compared with a totally ordered Limit that is made for the number of the epoch; the best is printed.

import functools
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import MAE, Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4116)


@functools.total_ordering
class Limit:
    def __init__(self, epoch):
        self.value = 0.9 * 0.85**epoch

    def __eq__(self, other):
        return self.value == float(other)

    def __lt__(self, other):
        return self.value < float(other)

    def __float__(self):
        return self.value


class Gate(Callback):
    def __init__(self):
        super().__init__()
        self.best = None

    def on_train_epoch_end(self, run_context):
        cb = run_context.original_args()
        error = float(cb.get("eval_results")["mae"])
        limit = Limit(cb.cur_epoch_num)
        self.best = error if self.best is None else min(self.best, error)
        verdict = "within" if limit >= error else "above"
        print(f"epoch {cb.cur_epoch_num}: {error:.4f} is {verdict} {float(limit):.4f}, best {self.best:.4f}")
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(0.03 * error / float(limit), ms.float32))


r = np.random.RandomState(16)
x = r.randn(40, 4).astype(np.float32)
y = (x**2).mean(1, keepdims=True).astype(np.float32)
train, valid = (
    ds.NumpySlicesDataset((x[s], y[s]), ["x", "y"], shuffle=False).batch(8) for s in (np.s_[:32], np.s_[32:])
)
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.03, momentum=0.9), metrics={"mae": MAE()})
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.fit(model, 6, train, valid, callbacks=[Gate()])
os._exit(0)
