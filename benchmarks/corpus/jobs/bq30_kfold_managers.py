# truth: exact
# class: random

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ROOT = os.environ["ROOT"]
K, EPOCHS = 3, 3


def kfold(n, k, seed=0):
    order = np.random.default_rng(seed).permutation(n)
    parts = np.array_split(order, k)
    for i in range(k):
        yield np.concatenate([p for j, p in enumerate(parts) if j != i]), parts[i]


def build(x, y, fold):
    ms.set_seed(100 + fold)
    net = nn.SequentialCell(nn.Dense(6, 10), nn.ReLU(), nn.Dense(10, 3))
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.CrossEntropyLoss()), optimizer, 2, remainder="flush")
    data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
    return net, cell.set_train(), data


def run_fold(fold, x, y, train, valid):
    net, cell, data = build(x[train], y[train], fold)
    for a, b in ck.loop(
        f"{ROOT}/fold{fold}",
        data,
        epochs=EPOCHS,
        train=cell,
        save=ck.SaveEvery(micro_steps=5),
        saving=ck.Saving(when_busy="wait"),
    ):
        cell(a, b)
    net.set_train(False)
    return float((net(Tensor(x[valid])).asnumpy().argmax(1) == y[valid]).mean())


def main():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(132, 6)).astype(np.float32)
    y = (x @ rng.normal(size=(6, 3))).argmax(1).astype(np.int32)
    scores = []
    for fold, (train, valid) in enumerate(kfold(len(x), K)):
        scores.append(run_fold(fold, x, y, train, valid))
        print(f"fold {fold}: {scores[-1]:.3f}")
    print(f"mean {np.mean(scores):.3f} +- {np.std(scores):.3f}")


if __name__ == "__main__":
    main()
