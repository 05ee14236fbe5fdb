"""Its map draws from the global NumPy generator, from which the loop's callback draws as well."""

import mindspore as ms
import numpy as np
from mindspore.train import Callback, Model
from tiny import Net, data, optimizer_of

import ckptkit as ck


def augment(x):
    return x + np.random.standard_normal(x.shape).astype(np.float32)


class Draws(Callback):
    def on_train_step_end(self, run_context):
        np.random.random()


ms.set_seed(5)
net = Net()
model = Model(ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=3))
dataset = data().map(augment, ["x"], num_parallel_workers=1).batch(4)
ck.CheckpointCallback("runs/mine").train(model, 5, dataset, callbacks=[Draws()])
