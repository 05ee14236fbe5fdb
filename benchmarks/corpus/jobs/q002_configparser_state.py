# truth: differs
# class: attribute
# The run-time settings are a ConfigParser; a plateau rule writes the new noise level back into it.

import configparser
import hashlib
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

CONFIG = """
[train]
epochs = 4
noise = 0.5
"""

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(12)
config = configparser.ConfigParser()
config.read_string(CONFIG)

rng = np.random.RandomState(2)
rows = []
for _ in range(9):
    a = rng.randn(6, 4).astype(np.float32)
    rows.append((ms.Tensor(a), ms.Tensor(a.sum(1, keepdims=True) ** 2)))

net = nn.SequentialCell(nn.Dense(4, 10), nn.ReLU(), nn.Dense(10, 1))
opt = nn.Adam(net.trainable_params(), 0.01)
loss_fn = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: loss_fn(net(a), b), None, opt.parameters)

for a, b in ck.loop(
    os.environ["ROOT"],
    rows,
    epochs=config.getint("train", "epochs"),
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
):
    sigma = config.getfloat("train", "noise")
    loss, grads = grad_fn(a + sigma * ops.sin(100.0 * a), b)
    opt(grads)
    if float(loss) < 30:
        config.set("train", "noise", f"{sigma * 0.95:.6f}")

print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
