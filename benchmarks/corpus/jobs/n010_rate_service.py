# truth: exact, may be named
# class: outside
# The rate is asked of a helper process that knows the schedule: it answers by the step alone, keeps answers in a cache and counts questions for its last words.

import os
import subprocess
import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4410)

SERVICE = """
import functools, math, sys
asked = 0
@functools.lru_cache(None)
def rate(step):
    warm = min(1.0, step / 8)
    return 0.04 * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, step / 32)))
for line in sys.stdin:
    asked += 1
    print(repr(rate(int(line))), flush=True)
print(f"{asked} questions", file=sys.stderr)
"""


class RateService(Callback):
    def __init__(self):
        super().__init__()
        self.process = None

    def rate(self, step):
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        print(step, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def on_train_step_begin(self, run_context):
        cb = run_context.original_args()
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(self.rate(cb.cur_step_num), ms.float32))

    def on_train_end(self, run_context):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


r = np.random.RandomState(10)
x = r.randn(48, 4).astype(np.float32)
y = (x[:, :1] - np.abs(x[:, 1:2])).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.04, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[RateService()])
os._exit(0)
