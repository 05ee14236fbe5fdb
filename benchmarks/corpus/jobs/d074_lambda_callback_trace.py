# truth: differs
# class: callback
# a LambdaCallback appends to a list of losses, and a second one sets the rate from its recent mean

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.train import Model

import ckptkit as ck

from mindspore.train import LambdaCallback

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def create_dataset(seed, batch_size=8):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(64, 8)).astype(np.float32)
    y = np.sin(x[:, :2].sum(axis=1, keepdims=True)).astype(np.float32)
    return ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(batch_size)


ds.config.set_seed(4)
data = create_dataset(9)

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.03, 0.9)
model = Model(net, nn.MSELoss(), optimizer)
trace = []


def loss_of(run_context):
    return float(run_context.original_args().net_outputs.asnumpy())


def rate(base=0.03, window=5):
    recent = trace[-window:]
    return base * min(2.0, float(np.mean(recent)) / max(trace))


record = LambdaCallback(on_train_step_end=lambda run_context: trace.append(loss_of(run_context)))
adapt = LambdaCallback(
    on_train_step_end=lambda run_context: ops.assign(optimizer.learning_rate, Tensor(rate(), ms.float32))
)
report = LambdaCallback(on_train_epoch_end=lambda run_context: print("steps", len(trace), "lowest", min(trace)))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[record, adapt, report])
os._exit(0)
