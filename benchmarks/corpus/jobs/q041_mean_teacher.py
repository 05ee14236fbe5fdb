# truth: exact
# class: variable
# Semi-supervised mean teacher: the teacher is a cell in the list of what is stored; the ramp-up follows the number.

import hashlib
import math
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(51)


def build(prefix):
    net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
    net.update_parameters_name(prefix)
    return net


def rampup(number, length=20):
    t = min(number, length) / length
    return math.exp(-5 * (1 - t) ** 2)


student, teacher = build("student."), build("teacher.")
for t, s in zip(teacher.get_parameters(), student.get_parameters()):
    t.set_data(s.value())
    t.requires_grad = False
opt = nn.Adam(student.trainable_params(), 0.01)


def forward(a, b, mask, target, weight):
    out = student(a)
    supervised = (mask * (out - b) ** 2).sum() / (mask.sum() + 1)
    return supervised + weight * ((out - target) ** 2).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)
r = np.random.RandomState(41)
x = r.randn(64, 5).astype(np.float32)
y = np.sin(x[:, :1] * 2).astype(np.float32)
mask = (r.rand(64, 1) < 0.3).astype(np.float32)
data = ds.NumpySlicesDataset((x, y, mask), ["x", "y", "mask"], shuffle=True).batch(8)
run = ck.loop(
    os.environ["ROOT"],
    data,
    epochs=4,
    train=[student, teacher, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for a, b, m in run:
    number = run.step
    noisy = a + ms.Tensor(np.random.normal(0, 0.05, a.shape).astype(np.float32))
    target = ops.stop_gradient(teacher(noisy))
    loss, grads = grad_fn(a, b, m, target, rampup(number))
    opt(grads)
    keep = min(0.95, 1 - 1 / (number + 2))
    for t, s in zip(teacher.get_parameters(), student.get_parameters()):
        ops.assign(t, keep * t + (1 - keep) * s)
net = nn.CellList([student, teacher])
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
