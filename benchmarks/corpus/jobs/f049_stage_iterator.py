# truth: differs
# class: variable
# Layer-wise training: an iterator over the stages is advanced when the smoothed loss has fallen by a tenth since the last time.

import os
from operator import itemgetter

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(35)

STAGES = [
    {"name": "head", "train": ("2.",)},
    {"name": "middle", "train": ("1.", "2.")},
    {"name": "all", "train": ("0.", "1.", "2.")},
    {"name": "bottom", "train": ("0.",)},
]

net = nn.SequentialCell(nn.Dense(6, 8, activation="tanh"), nn.Dense(8, 8, activation="tanh"), nn.Dense(8, 2))
params = net.trainable_params()
opt = nn.SGD(params, learning_rate=0.1)
mse = nn.MSELoss()
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, params)


def masked(grads, prefixes):
    return tuple(g if p.name.startswith(prefixes) else g * 0 for p, g in zip(params, grads))


r = np.random.RandomState(35)
rows = [(ms.Tensor(x), ms.Tensor(x[:, :2] * x[:, 2:4])) for x in r.randn(8, 12, 6).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=4)
manager = ck.CheckpointManager(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
with manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    stages = iter(STAGES)
    prefixes = itemgetter("train")(next(stages))
    mark = smooth = None
    for x, y in batches:
        loss, grads = vg(x, y)
        value = float(loss)
        smooth = value if smooth is None else 0.7 * smooth + 0.3 * value
        if mark is None:
            mark = smooth
        elif smooth < 0.95 * mark and (stage := next(stages, None)):
            prefixes, mark = stage["train"], smooth
            print("now training", stage["name"])
        opt(masked(grads, prefixes))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
