# truth: differs
# class: variable
# A child process is the curriculum server: it gets the size of each batch's values over a pipe and answers with a difficulty.

import hashlib
import os
import subprocess
import sys

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

SERVER = r"""
import sys
level = 0.1
for line in sys.stdin:
    size = float(line)
    level = min(1.0, level + 0.05 / (1 + size))
    print(level, flush=True)
"""

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(15)
r = np.random.RandomState(5)
rows = [(r.randn(6, 4).astype(np.float32), r.randn(6, 4).astype(np.float32)) for _ in range(8)]
net = nn.SequentialCell(nn.Dense(4, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Adam(net.trainable_params(), 0.01)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)

server = subprocess.Popen(
    [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
)


def ask(size):
    server.stdin.write(f"{size:.9f}\n")
    server.stdin.flush()
    return float(server.stdout.readline())


batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for clean, noise in batches:
        level = ask(float(np.abs(clean).mean()))
        target = (clean**2).sum(1, keepdims=True)
        loss, grads = grad_fn(ms.Tensor(clean + level * noise), ms.Tensor(target))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
server.stdin.close()
server.wait()
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
