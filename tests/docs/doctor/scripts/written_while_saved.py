"""Its callback decays the weights after each micro-step, and is declared to change nothing."""

import mindspore as ms
from mindspore import ops
from mindspore.train import Callback, Model
from tiny import Net, data, optimizer_of

import ckptkit as ck


class Decay(Callback):
    def __init__(self, parameters):
        super().__init__()
        self.parameters = parameters

    def on_train_step_end(self, run_context):
        for one in self.parameters:
            ops.assign(one, one * 0.99)


ms.set_seed(2)
net = Net(width=8192)  # small leaves are copied at once
model = Model(ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=3))
ckpt = ck.CheckpointCallback("runs/mine", save=ck.SaveEvery(micro_steps=4), training=ck.Training(read_only=[Decay]))
ckpt.train(model, 5, data().batch(4), callbacks=[Decay(net.trainable_params())])
