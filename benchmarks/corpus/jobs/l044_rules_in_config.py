# truth: differs
# class: attribute
# The rules of the schedule are lines of a config text that is compiled once and exec'ed after each batch in a namespace, which remembers `level`.

import os
import textwrap

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4144)

CONFIG = {
    "variables": {"level": 1.0, "base": 0.02, "rate": 0.02},
    "after_batch": """
        level = 0.85 * level + 0.15 * loss
        rate = base * clip(loss / level, 0.3, 2.0)
    """,
}


class Rules:
    def __init__(self, config):
        self.code = compile(textwrap.dedent(config["after_batch"]), "<config>", "exec")
        self.space = {"clip": lambda v, low, high: max(low, min(high, v)), **config["variables"]}

    def run(self, **facts):
        self.space.update(facts)
        exec(self.code, self.space)

    def __getattr__(self, name):
        try:
            return self.__dict__["space"][name]
        except KeyError:
            raise AttributeError(name) from None


r = np.random.RandomState(44)
rows = []
for _ in range(8):
    x = r.randn(8, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] - x[:, 1:2] ** 2).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.02, 0.9)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
rules = Rules(CONFIG)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        opt(grads)
        rules.run(loss=float(loss.asnumpy()))
        manager.fence()
        ops.assign(opt.learning_rate, ms.Tensor(rules.rate, ms.float32))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
