# truth: exact
# class: random
# the dynamic loss scaler is the cell's own, so its scale and counter resume; GRAPH mode, remainder flushed

import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

from mindspore import amp

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))


class MLP(nn.Cell):
    def __init__(self, dim=8, hidden=12, out=1):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.fc2 = nn.Dense(hidden, out)

    def construct(self, x):
        return self.fc2(ops.tanh(self.fc1(x)))


class Recorder(list):
    """Scales that were seen, for the log."""

    def note(self, value):
        if not self or self[-1] != value:
            self.append(value)
            print("loss scale", value)


network = nn.WithLossCell(MLP(), nn.MSELoss())
scaler = amp.DynamicLossScaler(scale_value=2.0**8, scale_factor=2, scale_window=2)
cell = ck.AccumulationTrainCell(
    network,
    nn.AdamWeightDecay(network.trainable_params(), 0.01, weight_decay=0.01),
    accumulation_steps=3,
    loss_scaler=scaler,
    remainder="flush",
)
cell.set_train()
seen = Recorder()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(x, y)
        seen.note(float(scaler.scale_value.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
