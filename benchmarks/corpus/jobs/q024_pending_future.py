# truth: differs
# class: attribute
# A thread pool weighs the classes from the last confusion counts; the loop uses the result one step later.

import concurrent.futures
import hashlib
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(34)
r = np.random.RandomState(24)
labels = r.choice(3, 54, p=[0.6, 0.3, 0.1]).astype(np.int32)
x = (r.randn(54, 6) + np.eye(3)[labels].repeat(2, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((x, labels), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 10), nn.ReLU(), nn.Dense(10, 3))
opt = nn.Adam(net.trainable_params(), 0.01)


def forward(a, onehot, w):
    p = net(a)
    return (w * (p - onehot) ** 2).mean(), p


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)


def weigh(predicted, truth):
    wrong = np.array([(predicted[truth == c] != c).sum() for c in range(3)], np.float32)
    return 1.0 + wrong


pool = concurrent.futures.ThreadPoolExecutor(1)
future = None
for a, b in ck.loop(
    os.environ["ROOT"],
    data,
    epochs=4,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
):
    weights = np.ones(3, np.float32) if future is None else future.result()
    truth = b.asnumpy()
    (loss, p), grads = grad_fn(a, ms.Tensor(np.eye(3, dtype=np.float32)[truth]), ms.Tensor(weights))
    opt(grads)
    future = pool.submit(weigh, p.asnumpy().argmax(1), truth)
pool.shutdown()
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
