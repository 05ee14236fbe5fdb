# truth: refused
# class: outside
# A thread reads the batches of resumable() into a queue, and the loop trains from the queue.

import hashlib
import os
import queue
import threading

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(44)


class Prefetcher:
    def __init__(self, source, depth=3):
        self.queue = queue.Queue(depth)
        self.source = source

    def _run(self):
        try:
            for item in self.source:
                self.queue.put(item)
            self.queue.put(None)
        except BaseException as error:
            self.queue.put(error)

    def __iter__(self):
        threading.Thread(target=self._run, daemon=True).start()
        while (item := self.queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item


r = np.random.RandomState(34)
rows = [(r.randn(4, 3).astype(np.float32), r.randn(4, 1).astype(np.float32)) for _ in range(10)]
net = nn.SequentialCell(nn.Dense(3, 6), nn.ReLU(), nn.Dense(6, 1))
opt = nn.Adam(net.trainable_params(), 0.01)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for a, b in Prefetcher(batches):
        loss, grads = grad_fn(ms.Tensor(a), ms.Tensor(b))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
