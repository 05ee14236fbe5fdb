# truth: differs
# class: callback
# The learning rate comes from a tuner that runs as a process of its own and is asked over pipes after each step; what it has heard so far ends with it.

import json
import os
import subprocess
import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4409)

TUNER = """
import json, sys
losses = []
for line in sys.stdin:
    losses.append(json.loads(line)["loss"])
    recent, all_ = losses[-4:], losses
    trend = (sum(recent) / len(recent)) / (sum(all_) / len(all_))
    print(json.dumps({"factor": 0.5 + min(1.5, trend)}), flush=True)
"""


class Tuned(Callback):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.tuner = subprocess.Popen(
            [sys.executable, "-c", TUNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, loss):
        self.tuner.stdin.write(json.dumps({"loss": loss}) + "\n")
        self.tuner.stdin.flush()
        return json.loads(self.tuner.stdout.readline())["factor"]

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        factor = self.ask(float(cb.net_outputs.asnumpy()))
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(self.base * factor, ms.float32))

    def on_train_end(self, run_context):
        self.tuner.stdin.close()
        self.tuner.wait()


r = np.random.RandomState(9)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.03, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Tuned(0.03)])
os._exit(0)
