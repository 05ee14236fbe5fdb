# truth: exact
# class: callback
# Competence-based curriculum in one graph: samples that are too difficult for the present step have no weight.

import logging
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

logging.basicConfig(filename="training.log", level=logging.INFO, format="%(asctime)s %(message)s")
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(159)


class CurriculumStep(nn.Cell):
    def __init__(self, network, optimizer, total, start=0.1):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer, self.total, self.start = network, optimizer, total, start
        self.grad_fn = ops.value_and_grad(self.loss, None, optimizer.parameters)

    def loss(self, x, y, weight):
        return (((self.network(x) - y) ** 2) * weight).sum() / (weight.sum() + 1e-6)

    def construct(self, x, y, difficulty):
        step = self.optimizer.global_step.astype(ms.float32)
        competence = ops.sqrt(ops.minimum(1.0, self.start**2 + (1 - self.start**2) * step / self.total))
        weight = (difficulty <= competence).astype(ms.float32)
        loss, grads = self.grad_fn(x, y, weight)
        return ops.depend(loss, self.optimizer(grads))


class LogLoss(Callback):
    def __init__(self, every):
        super().__init__()
        self.every, self.total, self.count = every, 0.0, 0

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        self.total += float(cb.net_outputs.asnumpy())
        self.count += 1
        if self.count == self.every:
            logging.info("step %d: %.4f", cb.cur_step_num, self.total / self.count)
            self.total, self.count = 0.0, 0


def train_curriculum(epochs):
    r = np.random.RandomState(60)
    x = r.randn(80, 6).astype(np.float32)
    y = (np.sin(3 * x[:, :1]) + x[:, 1:2]).astype(np.float32)
    difficulty = (np.abs(x[:, :1]).argsort(0).argsort(0) / 79).astype(np.float32)
    train = ds.NumpySlicesDataset((x, y, difficulty), ["x", "y", "difficulty"], shuffle=True).batch(8)
    net = nn.SequentialCell(nn.Dense(6, 24), nn.Tanh(), nn.Dense(24, 1))
    step = CurriculumStep(net, nn.Adam(net.trainable_params(), 1e-2), total=30.0)
    ms.Model(step).train(epochs, train, callbacks=[LogLoss(7)])
    return step


ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.attach()
step = train_curriculum(4)
os._exit(0)
