# truth: exact
# class: callback
# Random augmentation by ck.data.Augmented, K = 3, Model.train with a logging callback of one's own.

import hashlib
import os

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(63)


class Signals:
    def __init__(self, n=50):
        r = np.random.RandomState(53)
        self.phase = r.rand(n).astype(np.float32) * 6
        self.t = np.linspace(0, 3, 12, dtype=np.float32)

    def __len__(self):
        return len(self.phase)

    def __getitem__(self, index):
        return np.sin(self.t + self.phase[index]), np.cos(self.phase[index : index + 1])


def augment(sample, rng):
    signal, target = sample
    shift = int(rng.integers(0, 3))
    return (np.roll(signal, shift) + rng.normal(0, 0.05, signal.shape)).astype(np.float32), target


class Printer(Callback):
    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        if cb.cur_step_num % 10 == 0:
            print("epoch", cb.cur_epoch_num, "step", cb.cur_step_num, "loss", float(cb.net_outputs))


data = ck.data.Augmented(Signals(), augment, seed=9).dataset(["x", "y"]).batch(5)
net = nn.SequentialCell(nn.Dense(12, 16), nn.Tanh(), nn.Dense(16, 1))
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01), 3)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 4, data, callbacks=[Printer()])
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
