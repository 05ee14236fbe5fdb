# truth: differs
# class: file
# Best loss and patience are kept in a status.json beside the run root; a worse loss shrinks the gradients.

import hashlib
import json
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(13)
STATUS = os.path.join(os.path.dirname(os.environ["ROOT"]), "status.json")


def load_status():
    if not os.path.exists(STATUS):
        return {"best": 1e9, "bad": 0, "factor": 1.0}
    with open(STATUS) as file:
        return json.load(file)


def save_status(status):
    os.makedirs(os.path.dirname(STATUS), exist_ok=True)
    with open(STATUS, "w") as file:
        json.dump(status, file)


r = np.random.default_rng(3)
x = r.normal(size=(48, 6)).astype(np.float32)
y = (x[:, :1] * x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)

batches = ck.data.resumable(train, epochs=5)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for a, b in batches:
        status = load_status()
        loss, grads = grad_fn(a, b)
        opt(tuple(g * status["factor"] for g in grads))
        value = float(loss)
        if value < status["best"]:
            status.update(best=value, bad=0)
        else:
            status["bad"] += 1
            if status["bad"] >= 2:
                status["factor"] *= 0.8
        save_status(status)
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
