# truth: differs
# class: file
# Snapshot ensemble: every six steps the weights go to snap_*.npz; all that glob finds are averaged as a teacher.

import glob
import hashlib
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(28)
r = np.random.RandomState(18)
x = r.randn(56, 5).astype(np.float32)
y = (x[:, :1] ** 3 - x[:, 1:2]).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
w_in, w_out = nn.Dense(5, 10), nn.Dense(10, 1)
net = nn.SequentialCell(w_in, nn.Tanh(), w_out)
opt = nn.Adam(net.trainable_params(), 0.01)


def teacher(a):
    answers = []
    for path in sorted(glob.glob("snap_*.npz")):
        with np.load(path) as s:
            h = np.tanh(a @ s["arr_0"].T + s["arr_1"])
            answers.append(h @ s["arr_2"].T + s["arr_3"])
    return np.mean(answers, 0).astype(np.float32) if answers else None


def forward(a, b, t):
    out = net(a)
    return ((out - b) ** 2).mean() + 0.3 * ((out - t) ** 2).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)
run = ck.loop(
    os.environ["ROOT"],
    data,
    epochs=5,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for a, b in run:
    number = run.step
    t = teacher(a.asnumpy())
    loss, grads = grad_fn(a, b, b if t is None else ms.Tensor(t))
    opt(grads)
    if number % 6 == 5:
        np.savez(f"snap_{number:03d}.npz", *[p.asnumpy() for p in net.trainable_params()])
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
