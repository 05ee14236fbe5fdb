# truth: exact, may be named
# class: callback
# the masks are parameters of the layers; the sparsity comes from the epoch number

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import Callback, Model

import ckptkit as ck

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


class MaskedDense(nn.Cell):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.dense = nn.Dense(n_in, n_out)
        self.mask = Parameter(ops.ones((n_out, n_in), ms.float32), name="mask", requires_grad=False)

    def construct(self, x):
        return ops.matmul(x, (self.dense.weight * self.mask).T) + self.dense.bias

    def prune(self, sparsity):
        w = np.abs(self.dense.weight.asnumpy())
        keep = self.mask.asnumpy() * (w > np.quantile(w, sparsity))
        ops.assign(self.mask, Tensor(keep.astype(np.float32)))
        return float(keep.mean())


class PruneEachEpoch(Callback):
    def __init__(self, layers, schedule):
        super().__init__()
        self.layers, self.schedule = layers, schedule
        self.density = []

    def on_train_epoch_end(self, run_context):
        sparsity = self.schedule[run_context.original_args().cur_epoch_num - 1]
        self.density.append([layer.prune(sparsity) for layer in self.layers])
        print("density", self.density[-1])


layers = [MaskedDense(8, 12), MaskedDense(12, 1)]
net = nn.SequentialCell(layers[0], nn.Tanh(), layers[1])
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[PruneEachEpoch(layers, (0.2, 0.4, 0.5))])
os._exit(0)
