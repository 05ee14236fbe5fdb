# exact, named
import os
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)


class Guard:
    def __init__(self, net, path="best.ckpt"):
        self.net, self.path, self.best = net, path, float("inf")

    def check(self, loss):
        if loss < self.best:
            self.best = loss
            ms.save_checkpoint(self.net, self.path)
        elif loss > 4 * self.best:
            for name, value in ms.load_checkpoint(self.path).items():
                ops.assign(self.net.parameters_dict()[name], value)


guard = Guard(net)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        opt(grads)
        guard.check(float(loss))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
