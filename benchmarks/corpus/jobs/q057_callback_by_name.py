# truth: exact
# class: callback
# Model.train with a callback of one's own whose attributes are stored by name, and a progress bar that uses the clock.

import hashlib
import os
import sys
import time

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(67)


class AdaptiveDecay(Callback):
    """Shrinks the weights while the loss gets better, more gently when it does not."""

    def __init__(self, params):
        super().__init__()
        self.params, self.smooth, self.strength = params, 1.0, 1e-3

    def on_train_step_end(self, run_context):
        loss = float(run_context.original_args().net_outputs)
        self.strength *= 1.05 if loss < self.smooth else 0.9
        self.smooth = 0.8 * self.smooth + 0.2 * loss
        for p in self.params:
            p[:] = p * (1 - self.strength)


class ProgressBar(Callback):
    def __init__(self, total):
        super().__init__()
        self.total, self.begun = total, None

    def on_train_begin(self, run_context):
        self.begun = time.perf_counter()

    def on_train_step_end(self, run_context):
        done = run_context.original_args().cur_step_num
        spent = time.perf_counter() - self.begun
        sys.stdout.write(f"\r{done}/{self.total} eta {spent / done * (self.total - done):.1f}s ")
        sys.stdout.flush()

    def on_train_end(self, run_context):
        print()


r = np.random.RandomState(57)
x = r.randn(56, 5).astype(np.float32)
y = (x[:, :1] * 1.5).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(7)
net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))
decay = AdaptiveDecay(net.trainable_params())
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    stateful={"decay": ck.attributes(decay, "smooth", "strength")},
)
ckpt.train(model, 4, data, callbacks=[decay, ProgressBar(32)])
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
