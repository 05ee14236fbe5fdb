# truth: exact
# class: variable
# mindspore.experimental.optim with two parameter groups; its scheduler is stepped per epoch and given by name.

import os

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.experimental import optim

import ckptkit as ck

ms.set_seed(20)

net = nn.SequentialCell(nn.Dense(7, 14), nn.ReLU(), nn.Dense(14, 1))
criterion = nn.MSELoss()
optimizer = optim.AdamW(
    [
        {"params": list(net[0].trainable_params()), "lr": 0.01},
        {"params": list(net[2].trainable_params()), "lr": 0.02},
    ],
    lr=0.01,
    weight_decay=0.01,
)
scheduler = optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.6)


def forward_fn(data, label):
    return criterion(net(data), label)


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)


def train_step(data, label):
    loss, grads = grad_fn(data, label)
    optimizer(grads)
    return loss


rng = np.random.RandomState(0)
train_loader = []
for _ in range(8):
    d = rng.randn(6, 7).astype(np.float32)
    train_loader.append((ms.Tensor(d), ms.Tensor(d.mean(1, keepdims=True) ** 2)))

per_epoch = len(train_loader)
batches = ck.data.resumable(train_loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches, scheduler=scheduler)
    point = manager.restore(state)
    net.set_train()
    for number, (data, label) in enumerate(batches, point.batches_delivered + 1):
        loss = train_step(data, label)
        if number % per_epoch == 0:
            scheduler.step()
            print(f"epoch {batches.epoch}: {float(loss):.4f}")
        manager.step(state)
    manager.save_final(state)
os._exit(0)
