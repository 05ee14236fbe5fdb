# truth: exact
# class: attribute
# A foreign TrainOneStep cell with normalized layer-wise gradients (NovoGrad): second moments and momenta are Parameters; Model.train in GRAPH mode.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.train import Model, TimeMonitor

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(352)

update = ops.MultitypeFuncGraph("novograd_update")


@update.register("Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Tensor")
def _update(lr, beta1, beta2, w, g, m, v):
    v_new = beta2 * v + (1 - beta2) * (g * g).sum()
    m_new = beta1 * m + g / (ops.sqrt(v_new) + 1e-6)
    ops.assign(v, v_new)
    ops.assign(m, m_new)
    ops.assign(w, w - lr * m_new)
    return True


class NovoGradStep(nn.Cell):
    def __init__(self, network, lr=0.02, beta1=0.9, beta2=0.5):
        super().__init__(auto_prefix=False)
        self.network = network
        self.weights = ParameterTuple(network.trainable_params())
        self.m = self.weights.clone(prefix="m", init="zeros")
        self.v = ParameterTuple(
            [Parameter(Tensor(0.0, ms.float32), name="v." + w.name, requires_grad=False) for w in self.weights]
        )
        self.lr, self.beta1, self.beta2 = (Tensor(c, ms.float32) for c in (lr, beta1, beta2))
        self.grad = ops.GradOperation(get_by_list=True)
        self.map = ops.HyperMap()

    def construct(self, x, y):
        loss = self.network(x, y)
        grads = self.grad(self.network, self.weights)(x, y)
        done = self.map(ops.partial(update, self.lr, self.beta1, self.beta2), self.weights, grads, self.m, self.v)
        return ops.depend(loss, done)


r = np.random.RandomState(52)
x = r.randn(32, 5).astype(np.float32)
y = (x[:, :2] * x[:, 2:4]).astype(np.float32)
dataset = ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(4)
net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 2))
step = NovoGradStep(nn.WithLossCell(net, nn.MSELoss()))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(Model(step), 3, dataset, callbacks=[TimeMonitor()])
os._exit(0)
