# truth: exact
# class: outside
# Losses and weight norms go through a queue to a thread that writes them to a file.

import json
import os
import queue
import threading
import time

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(134)


class MetricsWriter(threading.Thread):
    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.queue, self.written = path, queue.Queue(), 0

    def put(self, **record):
        self.queue.put({"time": time.time(), **record})

    def run(self):
        while True:
            record = self.queue.get()
            if record is None:
                return
            with open(self.path, "a") as file:
                file.write(json.dumps(record) + "\n")
            self.written += 1

    def finish(self):
        self.queue.put(None)
        self.join()


r = np.random.RandomState(36)
x = r.randn(64, 6).astype(np.float32)
y = (x[:, :1] * np.cos(x[:, 1:2])).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 16), nn.Tanh(), nn.Dense(16, 1))
optimizer = nn.AdamWeightDecay(net.trainable_params(), 5e-3)
grad_fn = ms.value_and_grad(lambda x, y: ((net(x) - y) ** 2).mean(), None, net.trainable_params())

writer = MetricsWriter("metrics.jsonl")
writer.start()
batches = ck.data.resumable(train, epochs=5)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for xb, yb in batches:
        loss, grads = grad_fn(xb, yb)
        optimizer(grads)
        norm = float(sum((p.asnumpy() ** 2).sum() for p in net.trainable_params())) ** 0.5
        writer.put(epoch=batches.epoch, loss=float(loss.asnumpy()), norm=norm)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
writer.finish()
os._exit(0)
