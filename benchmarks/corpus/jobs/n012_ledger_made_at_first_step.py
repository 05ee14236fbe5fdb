# truth: exact, may be named
# class: callback
# A stateful callback makes its ledger (nested dataclasses, an Enum, a Counter) at its first step; state_dict is {} before, and enums and classes come back by name.

import enum
import os
from collections import Counter
from dataclasses import asdict, dataclass, field

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4412)


class Mood(enum.Enum):
    CALM = "calm"
    ALERT = "alert"


@dataclass
class Band:
    low: float
    high: float

    def widen(self, value):
        self.low, self.high = min(self.low, value), max(self.high, value)


@dataclass
class Ledger:
    band: Band
    mood: Mood = Mood.CALM
    seen: Counter = field(default_factory=Counter)


class Mooded(Callback):
    def __init__(self, base):
        super().__init__()
        self.base, self.ledger = base, None

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        if self.ledger is None:
            self.ledger = Ledger(Band(loss, loss))
        self.ledger.band.widen(loss)
        middle = (self.ledger.band.low + self.ledger.band.high) / 2
        self.ledger.mood = Mood.ALERT if loss > middle else Mood.CALM
        self.ledger.seen[self.ledger.mood.value] += 1
        alert = self.ledger.seen["alert"] / self.ledger.seen.total()
        rate = self.base * (1 - 0.7 * alert)
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(rate, ms.float32))

    def state_dict(self):
        if self.ledger is None:
            return {}
        return {"band": asdict(self.ledger.band), "mood": self.ledger.mood.name, "seen": dict(self.ledger.seen)}

    def load_state_dict(self, state):
        self.ledger = None
        if state:
            self.ledger = Ledger(Band(**state["band"]), Mood[state["mood"]], Counter(state["seen"]))


r = np.random.RandomState(12)
x = r.randn(40, 4).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + 0.4 * r.randn(40, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(5)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
mooded = Mooded(0.05)
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=6),
    saving=ck.Saving(when_busy="wait"),
    stateful={"mooded": mooded},
)
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))
ckpt.train(model, 4, train, callbacks=[mooded])
os._exit(0)
