# truth: exact
# class: variable
# A forward hook records mean and dead share of every activation in a dict of lists; they are printed at the end and used by nothing.

import os
from collections import defaultdict

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(88)
ms.set_context(mode=ms.PYNATIVE_MODE)
record = defaultdict(list)


def recorder(name):
    def hook(cell, inputs, output):
        values = output.asnumpy()
        record[name].append((float(values.mean()), float((values <= 0).mean())))

    return hook


layers = [nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1)]
for i in (1, 3):
    layers[i].register_forward_hook(recorder(f"relu{i}"))
net = nn.SequentialCell(*layers)
optimizer = nn.AdamWeightDecay(net.trainable_params(), learning_rate=0.01, weight_decay=0.01)
train = nn.TrainOneStepCell(nn.WithLossCell(net, nn.L1Loss()), optimizer).set_train()

r = np.random.RandomState(70)
X = r.randn(64, 8).astype(np.float32)
Y = np.minimum(X[:, :1], X[:, 1:2])
rows = [(ms.Tensor(X[i : i + 8]), ms.Tensor(Y[i : i + 8])) for i in range(0, 64, 8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(train, batches)
    manager.restore(state)
    for x, y in batches:
        train(x, y)
        manager.step(state)
    manager.save_final(state)
for name, values in record.items():
    print(name, np.mean(values, axis=0).round(4).tolist())
os._exit(0)
