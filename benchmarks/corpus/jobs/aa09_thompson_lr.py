# truth: differs
# class: attribute

import os
import dataclasses, typing
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

np.random.seed(4)
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.01, 0.9)


@dataclasses.dataclass
class Arm:
    lr: float
    wins: int = 1
    losses: int = 1

    def sample(self):
        return np.random.beta(self.wins, self.losses)


@dataclasses.dataclass
class Tuner:
    arms: typing.List[Arm] = dataclasses.field(default_factory=lambda: [Arm(0.003), Arm(0.01), Arm(0.03)])

    def choose(self):
        return max(self.arms, key=Arm.sample)


tuner = Tuner()
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        arm = tuner.choose()
        ops.assign(opt.learning_rate, Tensor(arm.lr, ms.float32))
        before, grads = grad_fn(x, y)
        opt(grads)
        if loss_fn(net(x), y) < before * 0.97:
            arm.wins += 1
        else:
            arm.losses += 1
        manager.step(state)
    manager.save_final(state)
os._exit(0)
