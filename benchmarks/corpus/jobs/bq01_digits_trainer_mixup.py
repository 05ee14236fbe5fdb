# truth: exact, may be named
# class: data

import os
from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

ROOT = os.environ["ROOT"]
OUT = Path(ROOT).parent / "out"


@dataclass
class Config:
    batch_size: int = 32
    epochs: int = 3
    lr: float = 0.01
    mixup_alpha: float = 0.4
    seed: int = 3


class DataLoader:
    """Shuffles once per epoch, by its own generator."""

    def __init__(self, x, y, batch_size, seed):
        self.x, self.y, self.batch_size, self.seed = x, y, batch_size, seed
        self.epoch, self.given = 0, 0

    def __len__(self):
        return len(self.x) // self.batch_size

    def __iter__(self):
        order = np.random.default_rng((self.seed, self.epoch)).permutation(len(self.x))
        while self.given < len(self):
            rows = order[self.given * self.batch_size : (self.given + 1) * self.batch_size]
            self.given += 1
            last = self.given == len(self)
            if last:
                self.epoch, self.given = self.epoch + 1, 0
            yield self.x[rows], self.y[rows]
            if last:
                return

    def state_dict(self):
        return {"epoch": self.epoch, "given": self.given}

    def load_state_dict(self, state):
        self.epoch, self.given = state["epoch"], state["given"]


class ConvNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.head = nn.Dense(4 * 64, 10)

    def construct(self, x):
        return self.head(ops.relu(self.bn(self.conv(x))).reshape(x.shape[0], -1))


class Trainer:
    def __init__(self, config, network):
        self.config, self.network = config, network
        self.optimizer = nn.AdamWeightDecay(network.trainable_params(), config.lr, weight_decay=0.01)
        self.grad_fn = ms.value_and_grad(self.forward, None, self.optimizer.parameters)
        self.best_accuracy = 0.0

    def forward(self, x, y):
        return -(y * ops.log_softmax(self.network(x))).sum(-1).mean()

    def mixup(self, x, y):
        lam = np.random.beta(self.config.mixup_alpha, self.config.mixup_alpha)
        perm = np.random.permutation(len(x))
        return lam * x + (1 - lam) * x[perm], lam * y + (1 - lam) * y[perm]

    def train_step(self, x, y):
        x, y = self.mixup(x, np.eye(10, dtype=np.float32)[y])
        loss, grads = self.grad_fn(Tensor(x, ms.float32), Tensor(y, ms.float32))
        self.optimizer(grads)
        return float(loss)

    def evaluate(self, x, y):
        self.network.set_train(False)
        accuracy = float((self.network(Tensor(x)).asnumpy().argmax(1) == y).mean())
        self.network.set_train(True)
        if accuracy > self.best_accuracy:
            self.best_accuracy = accuracy
            ms.save_checkpoint(self.network, str(OUT / "best.ckpt"))
        return accuracy


def main():
    config = Config()
    OUT.mkdir(exist_ok=True)
    ms.set_seed(config.seed)
    digits = load_digits()
    images = digits.train_images.reshape(-1, 1, 8, 8).astype(np.float32)
    labels = digits.train_labels.reshape(-1).astype(np.int64)
    loader = DataLoader(images[:384], labels[:384], config.batch_size, config.seed)
    trainer = Trainer(config, ConvNet().set_train())
    run = ck.loop(
        ROOT,
        loader,
        epochs=config.epochs,
        train=[trainer.network, trainer.optimizer],
        save=ck.SaveEvery(micro_steps=5),
        saving=ck.Saving(when_busy="wait"),
    )
    for x, y in run:
        number = run.step
        loss = trainer.train_step(x, y)
        if (number + 1) % len(loader) == 0:
            print(f"epoch {run.epoch} loss {loss:.3f} acc {trainer.evaluate(images[384:448], labels[384:448]):.3f}")


if __name__ == "__main__":
    main()
