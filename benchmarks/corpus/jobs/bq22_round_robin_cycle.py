# truth: differs
# class: attribute

import itertools
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
ms.set_seed(3)


class MultiTask(nn.Cell):
    def __init__(self, tasks):
        super().__init__()
        self.trunk = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU())
        self.heads = nn.CellDict({name: nn.Dense(12, 1) for name in tasks})

    def construct(self, x, task):
        return self.heads[task](self.trunk(x))


def make_task(seed, n=60):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    w = rng.normal(size=(6, 1))
    return [(Tensor(x[i : i + 6]), Tensor((x[i : i + 6] @ w).astype(np.float32))) for i in range(0, n, 6)]


def round_robin(loaders):
    """Endless: one batch of each task in turn."""
    iterators = {name: itertools.cycle(loader) for name, loader in loaders.items()}
    for name in itertools.cycle(["depth", "depth", "normal", "edges"]):
        yield name, next(iterators[name])


def train(steps=40):
    loaders = {"depth": make_task(1), "normal": make_task(2, 42), "edges": make_task(3, 54)}
    model = MultiTask(loaders)
    optimizer = nn.Adam(model.trainable_params(), 0.01)
    grad_fn = ms.value_and_grad(lambda x, y, t: ops.mse_loss(model(x, t), y), None, optimizer.parameters)
    stream = round_robin(loaders)
    run = ck.loop(
        ROOT,
        list(range(steps)),
        epochs=1,
        train=[model, optimizer],
        save=ck.SaveEvery(micro_steps=5),
        saving=ck.Saving(when_busy="wait"),
    )
    for _ in run:
        step = run.step
        task, (x, y) = next(stream)
        loss, grads = grad_fn(x, y, task)
        optimizer(grads)
        if step % 10 == 0:
            print(step, task, float(loss))


if __name__ == "__main__":
    train()
    os._exit(0)
