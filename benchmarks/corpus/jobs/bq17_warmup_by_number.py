# truth: exact
# class: variable

import math
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
ms.set_seed(4)
EPOCHS, WARMUP, BASE_LR = 3, 8, 0.05


def lr_at(step, total):
    if step < WARMUP:
        return BASE_LR * (step + 1) / WARMUP
    return BASE_LR * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (total - WARMUP)))


rng = np.random.default_rng(1)
x = rng.normal(size=(96, 8)).astype(np.float32)
y = (x[:, 0] > x[:, 1]).astype(np.int32)
dataset = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True)
dataset = dataset.batch(8, drop_remainder=True)
net = nn.SequentialCell(nn.Dense(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dense(16, 2))
criterion = nn.CrossEntropyLoss()
decay = [p for p in net.trainable_params() if "weight" in p.name]
others = [p for p in net.trainable_params() if "weight" not in p.name]
optimizer = nn.Momentum([{"params": decay, "weight_decay": 1e-3}, {"params": others}], BASE_LR, 0.9)
net.set_train()


def forward(data, label):
    logits = net(data)
    return criterion(logits, label), logits


grad_fn = ms.value_and_grad(forward, None, optimizer.parameters, has_aux=True)
total = dataset.get_dataset_size() * EPOCHS
correct = seen = 0
run = ck.loop(
    ROOT,
    dataset,
    epochs=EPOCHS,
    train=[net, optimizer],
    as_dict=True,
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for batch in run:
    step = run.step
    ops.assign(optimizer.learning_rate, Tensor(lr_at(step, total), ms.float32))
    (loss, logits), grads = grad_fn(batch["x"], batch["y"])
    optimizer(grads)
    correct += int((logits.argmax(1) == batch["y"]).sum())
    seen += len(batch["y"])
    if step % 12 == 11:
        print(f"step {step}: loss {float(loss):.4f} accuracy {correct / seen:.3f}")
        correct = seen = 0
os._exit(0)
