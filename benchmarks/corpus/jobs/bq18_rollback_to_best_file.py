# truth: refused
# class: attribute

import os
import types
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
BEST = Path(ROOT).parent / "out" / "best.ckpt"
BEST.parent.mkdir(exist_ok=True)
ms.set_seed(4)
rng = np.random.default_rng(1)
X = rng.normal(size=(128, 8)).astype(np.float32)
Y = (X[:, :1] * X[:, 1:2] + 0.2 * rng.normal(size=(128, 1))).astype(np.float32)
train = ds.NumpySlicesDataset((X[:96], Y[:96]), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(8, 16), nn.Tanh(), nn.Dense(16, 1))
optimizer = nn.SGD(net.trainable_params(), 0.3)
grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, optimizer.parameters)
track = types.SimpleNamespace(best=float("inf"), bad=0, lr=0.3)


def validate():
    return float(ops.mse_loss(net(Tensor(X[96:])), Tensor(Y[96:])))


def after_evaluation(value):
    if value < track.best:
        track.best, track.bad = value, 0
        ms.save_checkpoint(net, str(BEST))
        return
    track.bad += 1
    if track.bad >= 2:
        ms.load_param_into_net(net, ms.load_checkpoint(str(BEST)))
        track.lr *= 0.5
        track.bad = 0
        ops.assign(optimizer.learning_rate, Tensor(track.lr, ms.float32))


batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
    state = ck.StateManager([net, optimizer], batches, track=ck.attributes(track, "best", "bad", "lr"))
    point = manager.restore(state)
    for number, (x, y) in enumerate(batches, point.batches_delivered):
        loss, grads = grad_fn(x, y)
        optimizer(grads)
        if number % 4 == 3:
            after_evaluation(validate())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
