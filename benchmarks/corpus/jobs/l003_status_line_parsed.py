# truth: differs
# class: callback
# The status line of the step before is the only place that has the smoothed loss; the callback parses it back with a regular expression.

import os
import re

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4103)

STATUS = "step {step:4d} | loss {loss:.5f} | smooth {smooth:.6f}"
PATTERN = re.compile(r"smooth (?P<smooth>[\d.]+)")


class StatusLine(Callback):
    def __init__(self, optimizer, base):
        super().__init__()
        self.optimizer, self.base = optimizer, base
        self.line = ""

    def field(self, name, default):
        found = PATTERN.search(self.line)
        return float(found[name]) if found else default

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        smooth = 0.85 * self.field("smooth", loss) + 0.15 * loss
        self.line = STATUS.format(step=cb.cur_step_num, loss=loss, smooth=smooth)
        print(self.line, flush=True)
        rate = self.base * min(2.0, loss / smooth)
        ops.assign(self.optimizer.learning_rate, ms.Tensor(rate, ms.float32))


r = np.random.RandomState(3)
x = r.randn(48, 4).astype(np.float32)
y = np.abs(x).sum(1, keepdims=True).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(4, 10), nn.ReLU(), nn.Dense(10, 1))
opt = nn.SGD(net.trainable_params(), 0.01)
model = ms.Model(net, nn.MSELoss(), opt)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[StatusLine(opt, 0.01)])
os._exit(0)
