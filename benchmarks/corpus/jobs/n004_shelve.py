# truth: differs
# class: callback
# The callback keeps its smoothed loss in a shelve beside the root, so that it survives restarts; but the shelf is a few steps ahead of the checkpoint.

import os
import shelve

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4404)


class PersistentDamping(Callback):
    def __init__(self, path, layer, base):
        super().__init__()
        self.path, self.layer, self.base = path, layer, base

    def on_train_step_end(self, run_context):
        loss = float(run_context.original_args().net_outputs.asnumpy())
        with shelve.open(self.path) as shelf:
            level = shelf.get("level", loss)
            level = 0.8 * level + 0.2 * loss
            shelf["level"] = level
            shelf["steps"] = shelf.get("steps", 0) + 1
        damping = self.base * loss / (loss + level)
        ops.assign(self.layer.weight, self.layer.weight * (1 - damping))

    def on_train_end(self, run_context):
        with shelve.open(self.path) as shelf:
            print(f"{shelf['steps']} steps, level {shelf['level']:.4f}")


r = np.random.RandomState(4)
x = r.randn(48, 6).astype(np.float32)
y = np.where(x[:, :1] > 0.2, x[:, 1:2], x[:, 2:3] ** 2).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.02))
damping = PersistentDamping(os.environ["ROOT"].rstrip("/") + ".shelf", net[0], 0.05)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[damping])
os._exit(0)
