# truth: exact
# class: attribute
# Patience, best loss and the flag "stopped" are stored by name; the loop ends by break when the flag is set.

import hashlib
import os
import types

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(64)
r = np.random.RandomState(54)
x = r.randn(60, 4).astype(np.float32)
y = (x[:, :1] + 0.5 * r.randn(60, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
kept = types.SimpleNamespace(best=float("inf"), bad=0, damp=1.0, stopped=False)
batches = ck.data.resumable(data, epochs=5)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, kept=ck.attributes(kept, "best", "bad", "damp", "stopped"))
    manager.restore(state)
    if not kept.stopped:
        for a, b in batches:
            loss, grads = grad_fn(a, b)
            opt(tuple(g * kept.damp for g in grads))
            value = float(loss)
            if value < kept.best:
                kept.best, kept.bad = value, 0
            else:
                kept.bad += 1
                kept.damp *= 0.97
            kept.stopped = kept.bad > 15
            manager.step(state)
            if kept.stopped:
                break
        manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
