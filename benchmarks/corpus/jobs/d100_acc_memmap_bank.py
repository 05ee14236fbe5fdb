# truth: differs
# class: attribute
# a bank of target embeddings is a memory-mapped scratch file, made anew at each start

import os
import tempfile

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def indexed_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for k in range(n):
        x = rng.normal(size=(size, dim))
        y = x[:, :1] * x[:, 1:2] + (0.2 + 0.2 * k) * rng.normal(size=(size, 1))
        yield Tensor([k], ms.int32), Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(indexed_batches(31))


class EmbeddingBank:
    def __init__(self, folder, n, size, dim):
        path = os.path.join(folder, "bank.dat")
        self.data = np.memmap(path, dtype=np.float32, mode="w+", shape=(n, size, dim))

    def read(self, k):
        return Tensor(np.array(self.data[k]))

    def write(self, k, values, momentum=0.5):
        np.copyto(self.data[k], momentum * self.data[k] + (1 - momentum) * values)
        self.data.flush()


class BootstrapLoss(nn.Cell):
    """BYOL without a second network: targets are the embeddings of earlier epochs."""

    def __init__(self, dim=4):
        super().__init__()
        self.embed = nn.SequentialCell(nn.Dense(8, 12), nn.ReLU(), nn.Dense(12, dim))
        self.head = nn.Dense(dim, 1)

    def construct(self, x, y, targets):
        z = self.embed(x)
        return ((self.head(z) - y) ** 2).mean() + 0.3 * ((z - targets) ** 2).mean()


network = BootstrapLoss()
cell = ck.AccumulationTrainCell(network, nn.Adam(network.trainable_params(), 0.02), accumulation_steps=2).set_train()
bank = EmbeddingBank(tempfile.mkdtemp(prefix="bank-"), len(rows), 8, 4)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for index, x, y in batches:
        k = int(index.asnumpy()[0])
        cell(x, y, bank.read(k))
        bank.write(k, network.embed(x).asnumpy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
