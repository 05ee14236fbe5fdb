# truth: differs
# class: attribute
# An early stopping of one's own stops when the training loss has not been below its best for some steps; best and waiting time are plain attributes. GRAPH mode.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3543)


class StopWithoutProgress(Callback):
    def __init__(self, patience):
        super().__init__()
        self.patience = patience
        self.best, self.waited = float("inf"), 0

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        if loss < self.best:
            self.best, self.waited = loss, 0
            print(f"step {cb.cur_step_num}: best {loss:.4f}")
            return
        self.waited += 1
        if self.waited >= self.patience:
            print(f"step {cb.cur_step_num}: no progress for {self.waited} steps")
            run_context.request_stop()


r = np.random.RandomState(443)
x = r.randn(48, 4).astype(np.float32)
y = (0.5 * x[:, :1] + 1.5 * r.randn(48, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(4)
net = nn.SequentialCell(nn.Dense(4, 6), nn.Tanh(), nn.Dense(6, 1))
model = ms.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[StopWithoutProgress(patience=17)])
os._exit(0)
