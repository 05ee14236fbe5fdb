"""Its stateful object draws a random number whenever it is saved, and the loop draws as well."""

import mindspore as ms
import numpy as np
from mindspore.train import Callback, Model
from tiny import Net, data, optimizer_of

import ckptkit as ck


class Replay:
    def __init__(self):
        self.order = [0, 1, 2]

    def state_dict(self):
        np.random.shuffle(self.order)
        return {"order": self.order}

    def load_state_dict(self, state):
        self.order = state["order"]


class Draws(Callback):
    def on_train_step_end(self, run_context):
        np.random.random()


ms.set_seed(5)
net = Net()
model = Model(ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=3))
ckpt = ck.CheckpointCallback("runs/mine", stateful={"replay": Replay()})
ckpt.train(model, 5, data().batch(4), callbacks=[Draws()])
