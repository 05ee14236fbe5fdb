# truth: exact, may be named
# class: attribute

import os
import collections, types
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

opt = nn.SGD(net.trainable_params(), 0.1)


class Thresholds:
    def __init__(self, base, classes):
        self.base = base
        self.status = types.SimpleNamespace(learned=collections.Counter(), selected={})
        self.classes = classes

    def of(self, label):
        top = max(self.status.learned.values(), default=1)
        return self.base * (0.5 + 0.5 * self.status.learned[label] / max(top, 1))

    def observe(self, ids, conf, label):
        for i, c, l in zip(ids, conf, label):
            if c > self.base and int(i) not in self.status.selected:
                self.status.selected[int(i)] = int(l)
                self.status.learned[int(l)] += 1


thresholds = Thresholds(0.35, 4)


def forward(x, y, mask):
    return (ops.cross_entropy(net(x), y, reduction="none") * mask).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)


def pseudo(ids, x):
    p = ops.softmax(net(x), -1).asnumpy()
    conf, label = p.max(1), p.argmax(1)
    thresholds.observe(ids, conf, label)
    mask = np.array([c > thresholds.of(int(l)) for c, l in zip(conf, label)], np.float32)
    return label.astype(np.int32), mask


def fit(epochs):
    batches = ck.data.resumable(loader, epochs=epochs)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, opt], batches)
        manager.restore(state)
        for n, (ids, x, y) in enumerate(batches):
            _, grads = grad_fn(x, y, ops.ones((8,), ms.float32))
            opt(grads)
            label, mask = pseudo(ids, x)
            _, grads = grad_fn(x + 0.05, Tensor(label), Tensor(mask))
            opt(grads)
            manager.step(state)
        manager.save_final(state)


fit(3)
os._exit(0)
