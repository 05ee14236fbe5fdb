# truth: differs
# class: iterator
# A shell script that somebody else wrote counts the bad batches; its answer is the weight decay of the next update.

import hashlib
import os
import subprocess

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(30)


def bad_batches(add):
    script = '[ -n "$1" ] && echo bad >> ledger; [ -f ledger ] && wc -l < ledger || echo 0'
    done = subprocess.run(["sh", "-c", script, "sh", "x" if add else ""], capture_output=True, text=True, check=True)
    return int(done.stdout)


r = np.random.RandomState(20)
rows = []
for _ in range(8):
    a = r.randn(6, 5).astype(np.float32)
    rows.append((ms.Tensor(a), ms.Tensor(np.abs(a).max(1, keepdims=True))))
net = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 1))
opt = nn.Adam(net.trainable_params(), 0.01)
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
    decay = 1e-3 * bad_batches(float(loss) > 1.0)
    opt(tuple(g + decay * p for g, p in zip(grads, opt.parameters)))
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
