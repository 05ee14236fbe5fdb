# truth: differs
# class: callback
# A budget of 26 steps: the callback counts down from it and requests the stop; a start has the whole budget again and trains more steps in all.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4307)


class StepBudget(Callback):
    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_train_step_end(self, run_context):
        self.left -= 1
        if self.left == 0:
            print(f"the budget is used up at step {run_context.original_args().cur_step_num}")
            run_context.request_stop()


class Curve(Callback):
    """prints the mean loss of an epoch"""

    def on_train_epoch_begin(self, run_context):
        self.losses = []

    def on_train_step_end(self, run_context):
        self.losses.append(float(run_context.original_args().net_outputs.asnumpy()))

    def on_train_epoch_end(self, run_context):
        print(f"epoch {run_context.original_args().cur_epoch_num}: {np.mean(self.losses):.4f}")


r = np.random.RandomState(7)
x = r.randn(48, 5).astype(np.float32)
y = (np.abs(x[:, :2]).sum(1, keepdims=True) - x[:, 4:]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 1))
schedule = nn.CosineDecayLR(0.001, 0.05, 40)
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), schedule, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 5, train, callbacks=[Curve(), StepBudget(26)])
os._exit(0)
