"""Its own train cell gathers gradients in a list, which no checkpoint holds."""

import mindspore as ms
from mindspore import nn
from mindspore.train import Model
from tiny import Net, data, optimizer_of

import ckptkit as ck


class TrainStep(nn.Cell):
    def __init__(self, network, optimizer, k):
        super().__init__(auto_prefix=False)
        self.network = network
        self.optimizer = optimizer
        self.k = k
        self.gathered = []
        self.forward = ms.value_and_grad(network, None, optimizer.parameters)

    def construct(self, x, y):
        loss, grads = self.forward(x, y)
        self.gathered.append(grads)
        if len(self.gathered) == self.k:
            self.optimizer(tuple(sum(parts) / self.k for parts in zip(*self.gathered, strict=True)))
            self.gathered = []
        return loss


ms.set_seed(5)
net = Net()
model = Model(TrainStep(net, optimizer_of(net), k=3))
ck.CheckpointCallback("runs/mine").train(model, 5, data().batch(4))
