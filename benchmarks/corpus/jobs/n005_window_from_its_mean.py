# truth: differs
# class: callback
# A stateful callback stores the mean and the length of its window of losses; load_state_dict fills the window with that mean, and its spread is gone.

import os
from collections import deque

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4405)


class SpreadRate(Callback):
    """small steps while the losses of the last batches differ much"""

    def __init__(self, base, size):
        super().__init__()
        self.base = base
        self.window = deque(maxlen=size)

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        self.window.append(float(cb.net_outputs.asnumpy()))
        spread = (max(self.window) - min(self.window)) / np.mean(self.window)
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(self.base / (1 + 2 * spread), ms.float32))

    def state_dict(self):
        return {"mean": float(np.mean(self.window)) if self.window else 0.0, "length": len(self.window)}

    def load_state_dict(self, state):
        self.window.clear()
        self.window.extend([state["mean"]] * state["length"])


r = np.random.RandomState(5)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] ** 2 - x[:, 3:4] * x[:, 4:]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 12), nn.Tanh(), nn.Dense(12, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.08, 0.9))
spread = SpreadRate(0.08, size=9)
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    stateful={"spread": spread},
)
ckpt.train(model, 3, train, callbacks=[spread])
os._exit(0)
