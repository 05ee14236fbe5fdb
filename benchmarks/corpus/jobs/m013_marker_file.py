# truth: differs
# class: attribute
# After the second epoch the moments are cleared, once per run however often it starts: a marker file beside the root says that it was done.

import os
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4313)


class ClearMomentsOnce(Callback):
    def __init__(self, step, marker):
        super().__init__()
        self.step, self.marker = step, Path(marker)

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        if cb.cur_step_num >= self.step and not self.marker.exists():
            for moment in cb.optimizer.moments:
                ops.assign(moment, ops.zeros_like(moment))
            self.marker.touch()
            print(f"step {cb.cur_step_num}: moments cleared")


r = np.random.RandomState(13)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] ** 2 - x[:, 1:2] * x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.95))
once = ClearMomentsOnce(16, os.environ["ROOT"].rstrip("/") + ".cleared")
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[once])
os._exit(0)
