# truth: exact, may be named
# class: callback
# Warm-up, stable, decay: the callback finds its phase with bisect from cur_step_num; what it remembers of phases is only printed.

import bisect
import os
from collections import Counter
from functools import cached_property

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3102)


class WarmupStableDecay(Callback):
    names = ("warm-up", "stable", "decay")

    def __init__(self, opt, peak, *, ends):
        super().__init__()
        self.opt, self.peak, self.ends = opt, peak, ends
        self.seen = Counter()

    @cached_property
    def decay_length(self):
        return self.ends[-1] - self.ends[-2]

    def rate(self, step):
        phase = bisect.bisect_left(self.ends, step)
        self.seen[self.names[min(phase, 2)]] += 1
        if phase == 0:
            return self.peak * step / self.ends[0]
        if phase == 1:
            return self.peak
        return self.peak * max(0.05, (self.ends[-1] - step) / self.decay_length)

    def on_train_step_end(self, run_context):
        step = run_context.original_args().cur_step_num
        ops.assign(self.opt.learning_rate, ms.Tensor(self.rate(step + 1), ms.float32))

    def on_train_end(self, run_context):
        print(dict(self.seen))


r = np.random.RandomState(2)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :2] * x[:, 2:4]).astype(np.float32)
train_set = ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(6)

net = nn.SequentialCell(nn.Dense(5, 10), nn.ReLU(), nn.Dense(10, 2))
opt = nn.Adam(net.trainable_params(), learning_rate=0.002)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(net, nn.MSELoss(), opt), 3, train_set, callbacks=[WarmupStableDecay(opt, 0.02, ends=[5, 14, 26])])
os._exit(0)
