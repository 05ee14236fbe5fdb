# truth: differs
# class: variable
# Stagewise boosting with one small network: at the end of each stage its predictions join an array F, and the residuals are the new targets.

import os
from contextlib import contextmanager

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(5)
STAGE = 6
SHRINK = 0.5

rng = np.random.default_rng(1)
X = rng.normal(size=(54, 5)).astype(np.float32)
Y = (np.sin(2 * X[:, :1]) + X[:, 1:2] * X[:, 2:3]).astype(np.float32)
F = np.zeros_like(Y)  # what the ensemble predicts so far

weak = nn.SequentialCell(nn.Dense(5, 6), nn.ReLU(), nn.Dense(6, 1))
mse = nn.MSELoss()
opt = nn.Adam(weak.trainable_params(), learning_rate=0.03)
vg = ms.value_and_grad(lambda x, y: mse(weak(x), y), None, weak.trainable_params())


@contextmanager
def evaluation(net):
    net.set_train(False)
    try:
        yield net
    finally:
        net.set_train(True)


def finish_stage():
    with evaluation(weak) as net:
        F[:] = F + SHRINK * net(ms.Tensor(X)).asnumpy()
    print("residual", float(((Y - F) ** 2).mean()))


index_batches = [(np.arange(i, 54, 9),) for i in range(9)]
batches = ck.data.resumable(index_batches, epochs=3)
weak.set_train()
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([weak, opt], batches)
    point = manager.restore(state)
    for number, (rows,) in enumerate(batches, start=point.batches_delivered + 1):
        loss, grads = vg(ms.Tensor(X[rows]), ms.Tensor(Y[rows] - F[rows]))
        opt(grads)
        if number % STAGE == 0:
            finish_stage()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
