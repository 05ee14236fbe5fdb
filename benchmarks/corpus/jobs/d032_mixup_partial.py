# truth: differs
# class: variable
# functools.partial binds mixup to a RandomState of its own, which is not stored

import functools
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def blobs(seed, classes=4, dim=8, total=64, size=8):
    rng = np.random.default_rng(seed)
    centers = 2.0 * rng.normal(size=(classes, dim))
    labels = rng.integers(0, classes, total)
    feats = (centers[labels] + rng.normal(size=(total, dim))).astype(np.float32)
    onehot = np.eye(classes, dtype=np.float32)[labels]
    return [(Tensor(feats[k : k + size]), Tensor(onehot[k : k + size])) for k in range(0, total, size)]


rows = blobs(21)


def mixup(x, y, *, rng, alpha):
    lam = float(rng.beta(alpha, alpha))
    order = rng.permutation(len(x))
    mix = lambda t: lam * t + (1 - lam) * Tensor(t.asnumpy()[order])
    return mix(x), mix(y)


def cutout(x, y, *, rng, width):
    at = rng.randint(0, x.shape[1] - width + 1)
    mask = np.ones(x.shape[1], np.float32)
    mask[at : at + width] = 0
    return x * Tensor(mask), y


def make_augmentations(seed):
    rng = np.random.RandomState(seed)
    return [functools.partial(mixup, rng=rng, alpha=0.4), functools.partial(cutout, rng=rng, width=2)]


net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4), nn.Softmax())
optimizer = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda x, y: ((net(x) - y) ** 2).sum(1).mean(), None, optimizer.parameters)
augmentations = make_augmentations(3)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        for augment in augmentations:
            x, y = augment(x, y)
        loss, grads = grad_fn(x, y)
        optimizer(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
