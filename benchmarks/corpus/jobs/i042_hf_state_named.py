# truth: exact
# class: attribute
# A Hugging Face style trainer whose TrainerState is a dataclass that is given by name, field by field; speed and memory metrics are only printed.

import os
import time
from dataclasses import asdict, dataclass, fields

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(342)


@dataclass
class TrainerState:
    global_step: int = 0
    smoothed_loss: float = 1.0
    patience: int = 0
    penalty: float = 0.01


class SpeedMetrics:
    def __init__(self):
        self.begin, self.samples = time.time(), 0

    def add(self, n):
        self.samples += n

    def report(self):
        return {"samples_per_second": round(self.samples / (time.time() - self.begin), 1)}


class Trainer:
    def __init__(self, model):
        self.model = model
        self.state = TrainerState()
        self.speed = SpeedMetrics()
        self.optimizer = nn.Adam(model.trainable_params(), 0.02)
        self.vg = ms.value_and_grad(self.compute_loss, None, model.trainable_params())

    def compute_loss(self, x, y, penalty):
        out = self.model(x)
        return ((out - y) ** 2).mean() + penalty * (out**2).mean()

    def training_step(self, x, y):
        s = self.state
        loss, grads = self.vg(x, y, ms.Tensor(s.penalty, ms.float32))
        self.optimizer(grads)
        value = float(loss.asnumpy())
        s.patience = s.patience + 1 if value > s.smoothed_loss else 0
        s.smoothed_loss = 0.8 * s.smoothed_loss + 0.2 * value
        if s.patience >= 2:
            s.penalty, s.patience = s.penalty * 1.5, 0
        s.global_step += 1
        self.speed.add(len(x))
        return value


r = np.random.RandomState(42)
rows = []
for k in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(((1 + k % 2) * x[:, :1] + 0.5 * r.randn(6, 1)).astype(np.float32))))

trainer = Trainer(nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1)))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    trainer_state = ck.attributes(trainer.state, *(f.name for f in fields(TrainerState)))
    state = ck.StateManager([trainer.model, trainer.optimizer], batches, trainer_state=trainer_state)
    manager.restore(state)
    for x, y in batches:
        value = trainer.training_step(x, y)
        manager.step(state, {"loss": value})
    print({**asdict(trainer.state), **trainer.speed.report()})
    manager.save_final(state)
os._exit(0)
