# truth: exact
# class: random

import os
import mindspore as ms, numpy as np
import mindspore.dataset as ds
from mindspore import nn, ops
import ckptkit as ck

ROOT = os.environ["ROOT"]
ms.set_seed(3)


def pipeline(seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(48, 6)).astype(np.float32)
    y = x[:, :1]
    return ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)


def pretrain(backbone):
    head = nn.Dense(12, 6)
    opt = nn.Momentum([*backbone.trainable_params(), *head.trainable_params()], 0.05, 0.9)
    step = ms.value_and_grad(lambda x: ops.mse_loss(head(backbone(x)), x), None, opt.parameters)
    for x, y in ck.loop(
        f"{ROOT}/pre", pipeline(), epochs=4, train=[backbone, head, opt], save=ck.SaveEvery(micro_steps=3)
    ):
        loss, grads = step(x)
        opt(grads)


def finetune(backbone):
    head = nn.Dense(12, 1)
    opt = nn.Momentum([*backbone.trainable_params(), *head.trainable_params()], 0.05, 0.9)
    step = ms.value_and_grad(lambda x, y: ops.mse_loss(head(backbone(x)), y), None, opt.parameters)
    for x, y in ck.loop(
        f"{ROOT}/fine", pipeline(2), epochs=4, train=[backbone, head, opt], save=ck.SaveEvery(micro_steps=3)
    ):
        loss, grads = step(x, y)
        opt(grads)


backbone = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh())
pretrain(backbone)
finetune(backbone)
