# truth: exact
# class: callback
# print is replaced by a buffered console that counts lines, folds repeated ones and flushes per epoch; nobody asks it for anything.

import os
import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4108)


class BufferedConsole:
    def __init__(self):
        self.lines, self.folded = [], 0

    def __call__(self, *words):
        line = " ".join(map(str, words))
        if self.lines and self.lines[-1] == line:
            self.folded += 1
            return len(self.lines)
        self.lines.append(line)
        return len(self.lines)

    def flush(self):
        sys.stdout.write("\n".join([*self.lines, f"({self.folded} lines folded)"]) + "\n")
        self.lines, self.folded = [], 0


print = BufferedConsole()


class Report(Callback):
    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        print(f"epoch {cb.cur_epoch_num}: loss {float(cb.net_outputs.asnumpy()):.1f}")

    def on_train_epoch_end(self, run_context):
        print.flush()


class InverseSqrt(Callback):
    def on_train_step_begin(self, run_context):
        cb = run_context.original_args()
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(0.05 / cb.cur_step_num**0.5, ms.float32))


r = np.random.RandomState(8)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] ** 2 - x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.02, 0.8)
model = ms.Model(net, nn.MSELoss(), opt)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[InverseSqrt(), Report()])
os._exit(0)
