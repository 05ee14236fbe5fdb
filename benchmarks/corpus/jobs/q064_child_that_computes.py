# truth: exact
# class: outside
# A child process computes a factor from the loss and keeps nothing.

import hashlib
import os
import subprocess
import sys

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(64)
PROGRAM = "import math, sys\nprint(math.tanh(float(sys.stdin.read())))"

r = np.random.RandomState(64)
rows = [(ms.Tensor(r.randn(5, 4).astype(np.float32)), ms.Tensor(r.randn(5, 1).astype(np.float32))) for _ in range(8)]
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
for a, b in ck.loop(
    os.environ["ROOT"],
    rows,
    epochs=4,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
):
    loss, grads = grad_fn(a, b)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=repr(float(loss)), capture_output=True, text=True, check=True
    )
    opt(tuple(g * float(done.stdout) for g in grads))
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
