# differs, named
import os
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(31)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (np.abs(X).argmax(1) % 4).astype(np.int32)
order = rng0.permutation(80)
loader = [(order[i : i + 8], Tensor(X[order[i : i + 8]]), Tensor(Y[order[i : i + 8]])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 4))

opt = nn.Adam(net.trainable_params(), 0.01)


class Ensemble:
    def __init__(self, alpha=0.6):
        self.alpha, self.table = alpha, {}

    def lookup(self, ids, fallback):
        return np.stack([self.table.get(int(i), row) for i, row in zip(ids, fallback)])

    def absorb(self, ids, rows):
        for i, row in zip(ids, rows):
            old = self.table.get(int(i))
            self.table[int(i)] = row if old is None else self.alpha * old + (1 - self.alpha) * row


ensemble = Ensemble()


def forward(x, y, z):
    p = ops.softmax(net(x), -1)
    return ops.cross_entropy(net(x), y) + 2.0 * ((p - z) ** 2).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for ids, x, y in batches:
        now = ops.softmax(net(x), -1).asnumpy()
        _, grads = grad_fn(x, y, Tensor(ensemble.lookup(ids, now)))
        opt(grads)
        ensemble.absorb(ids, now)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
