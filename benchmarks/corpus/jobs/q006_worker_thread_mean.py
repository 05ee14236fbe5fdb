# truth: differs
# class: outside
# A worker thread keeps the running mean of the losses in a local variable and hands back a baseline each step.

import hashlib
import os
import queue
import threading

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(16)
questions, answers = queue.Queue(), queue.Queue()


def worker():
    mean = 0.0
    while True:
        loss = questions.get()
        if loss is None:
            return
        mean = 0.9 * mean + 0.1 * loss
        answers.put(mean)


thread = threading.Thread(target=worker, daemon=True)
thread.start()

r = np.random.RandomState(6)
x = r.randn(50, 3).astype(np.float32)
y = np.cos(x.sum(1, keepdims=True)).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(5)
net = nn.SequentialCell(nn.Dense(3, 9), nn.Tanh(), nn.Dense(9, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
for a, b in ck.loop(
    os.environ["ROOT"],
    data,
    epochs=3,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
):
    loss, grads = grad_fn(a, b)
    questions.put(float(loss))
    baseline = answers.get()
    opt(tuple(g * (0.5 + baseline) for g in grads))
questions.put(None)
thread.join()
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
