# truth: exact
# class: file
# An open file of packed records is read once per batch, but each time after a seek to the record of the batch's number, which begins at the restored position.

import os
import struct

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4427)
RECORD = struct.Struct("<dd")

root = os.environ["ROOT"]
path = root.rstrip("/") + ".records"
r = np.random.RandomState(27)
with open(path, "wb") as out:
    for _ in range(7):
        out.write(RECORD.pack(0.5 + r.rand(), r.randn() / 4))


class Records:
    def __init__(self, path):
        self.file = open(path, "rb")
        self.count = os.fstat(self.file.fileno()).st_size // RECORD.size
        self.bytes_read = 0

    def __getitem__(self, number):
        self.file.seek(number % self.count * RECORD.size)
        data = self.file.read(RECORD.size)
        self.bytes_read += len(data)
        return RECORD.unpack(data)


rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((x, ms.Tensor((x[:, :1] * x[:, 1:2] - x[:, 2:3]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.02), accumulation_steps=1).set_train()
records = Records(path)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        scale, shift = records[at]
        cell(ms.Tensor((scale * np.asarray(x) + shift).astype(np.float32)), y)
        manager.step(state)
    manager.save_final(state)
    print(records.bytes_read, "bytes of records were read")
os._exit(0)
