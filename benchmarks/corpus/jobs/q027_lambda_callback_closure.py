# truth: differs
# class: closure
# Model.train with LambdaCallbacks: a closure counts good steps and pulls the weights towards zero with that strength.

import hashlib
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import LambdaCallback, LossMonitor

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(37)


def shrinker(params):
    good, last = 0, float("inf")

    def step_end(run_context):
        nonlocal good, last
        loss = float(run_context.original_args().net_outputs)
        if loss < last:
            good += 1
        last = loss
        for p in params:
            p[:] = p * (1.0 - 1e-3 * good)

    return step_end


r = np.random.RandomState(27)
x = r.randn(64, 5).astype(np.float32)
y = (x[:, :1] - x[:, 4:]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(
    model, 4, train, callbacks=[LambdaCallback(on_train_step_end=shrinker(net.trainable_params())), LossMonitor(8)]
)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
