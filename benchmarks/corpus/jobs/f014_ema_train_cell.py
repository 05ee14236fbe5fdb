# truth: exact
# class: data
# A train cell of one's own with an exponential average of the weights in Parameters that pulls the weights back.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import ParameterTuple, nn, ops

import ckptkit as ck

ms.set_seed(23)
ms.set_context(mode=ms.GRAPH_MODE)


class PulledStep(nn.Cell):
    """One step, then w <- w + 0.05 (ema - w)."""

    def __init__(self, network, optimizer, decay=0.9):
        super().__init__(auto_prefix=False)
        self.network = network
        self.optimizer = optimizer
        self.weights = optimizer.parameters
        self.ema = self.weights.clone(prefix="ema", init="same")
        self.grad = ops.GradOperation(get_by_list=True)
        self.decay = decay
        self.count = len(self.weights)

    def construct(self, *inputs):
        loss = self.network(*inputs)
        grads = self.grad(self.network, self.weights)(*inputs)
        loss = ops.depend(loss, self.optimizer(grads))
        for i in range(self.count):
            new = self.decay * self.ema[i] + (1 - self.decay) * self.weights[i]
            ops.assign(self.ema[i], new)
            ops.assign(self.weights[i], self.weights[i] + 0.05 * (new - self.weights[i]))
        return loss


class Source:
    def __init__(self):
        r = np.random.RandomState(3)
        self.x = r.randn(56, 8).astype(np.float32)
        self.y = np.tanh(self.x[:, :3])

    def __getitem__(self, i):
        return self.x[i], self.y[i]

    def __len__(self):
        return 56


data = ds.GeneratorDataset(Source(), ["x", "y"], shuffle=True, num_parallel_workers=1).batch(7)
loss = nn.WithLossCell(nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 3)), nn.MSELoss())
loss.set_train()
step = PulledStep(loss, nn.Momentum(loss.trainable_params(), 0.1, 0.9))
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    training=ck.Training(augmentation="stateless"),
)
ckpt.train(ms.Model(step), 3, data)
os._exit(0)
