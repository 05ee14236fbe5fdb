# truth: differs
# class: callback
# A callback uses the params that MindSpore hands to every callback as a notebook: the smoothed loss is written into them and read back.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_seed(80)
ms.set_context(mode=ms.GRAPH_MODE)


class LossAwareRate(Callback):
    def __init__(self, optimizer, base):
        super().__init__()
        self.optimizer = optimizer
        self.base = base

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        out = params.net_outputs
        loss = float(out.asnumpy()) if isinstance(out, ms.Tensor) else float(out[0].asnumpy())
        smooth = params.get("smooth_loss")
        params["smooth_loss"] = loss if smooth is None else 0.9 * smooth + 0.1 * loss
        ratio = min(2.0, max(0.25, params["smooth_loss"] / (loss + 1e-6)))
        ops.assign(self.optimizer.learning_rate, ms.Tensor(self.base * ratio, ms.float32))


rng = np.random.default_rng(4)
x = rng.normal(size=(64, 10)).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + 0.5 * x[:, 2:3]).astype(np.float32)
dataset = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)

network = nn.SequentialCell(nn.Dense(10, 8), nn.Tanh(), nn.Dense(8, 1))
optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.03, momentum=0.9)
model = ms.Model(network, nn.MSELoss(), optimizer)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, dataset, callbacks=[LossAwareRate(optimizer, 0.03)])
os._exit(0)
