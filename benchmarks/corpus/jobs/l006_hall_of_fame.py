# truth: exact, may be named
# class: callback
# min, max, nsmallest and a heap of the worst steps are kept for a table at the end; the rate is clamped by min and max of this step's loss alone.

import heapq
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4106)


class HallOfFame(Callback):
    def __init__(self, low=0.005, high=0.03):
        super().__init__()
        self.low, self.high = low, high
        self.best, self.worst = (float("inf"), 0), []

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        self.best = min(self.best, (loss, cb.cur_step_num))
        heapq.heappush(self.worst, (-loss, cb.cur_step_num))
        while len(self.worst) > 5:
            self.worst.remove(max(self.worst))
        rate = max(self.low, min(self.high, 0.02 / (0.5 + loss)))
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(rate, ms.float32))

    def on_train_end(self, run_context):
        print("best  {:.4f} in step {}".format(*self.best))
        for loss, step in heapq.nsmallest(3, self.worst):
            print(f"worst {-loss:.4f} in step {step}")


r = np.random.RandomState(6)
x = r.randn(48, 6).astype(np.float32)
y = np.sin(x[:, :1] + x[:, 3:4]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.02, 0.8))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[HallOfFame()])
os._exit(0)
