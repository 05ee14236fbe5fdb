# truth: differs
# class: attribute
# A GAN whose parts talk by blinker signals: a referee hears after each batch how often the critic was right, and its running share sets the critic's rate.

import os

import blinker
import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4348)

batch_trained = blinker.Signal("what a batch came to")


class Referee:
    """slows the critic down while it wins"""

    def __init__(self, optimizer, base):
        self.optimizer, self.base = optimizer, base
        self.share = 0.5
        batch_trained.connect(self.judge)

    def judge(self, sender, right, **more):
        self.share = 0.8 * self.share + 0.2 * right
        ops.assign(self.optimizer.learning_rate, ms.Tensor(self.base * (1.5 - self.share), ms.float32))


@batch_trained.connect
def report(sender, right, number, **more):
    print(f"{number:3}: the critic was right in {100 * right:.0f} % of the cases")


generator = nn.SequentialCell(nn.Dense(3, 8), nn.Tanh(), nn.Dense(8, 2))
critic = nn.SequentialCell(nn.Dense(2, 8), nn.Tanh(), nn.Dense(8, 1))
generator.update_parameters_name("generator.")
critic.update_parameters_name("critic.")
g_opt = nn.Adam(generator.trainable_params(), 0.01)
d_opt = nn.SGD(critic.trainable_params(), 0.05, momentum=0.5)
referee = Referee(d_opt, 0.05)


def critic_loss(real, fake):
    return ((critic(real) - 1) ** 2).mean() + (critic(fake) ** 2).mean()


def generator_loss(z):
    return ((critic(generator(z)) - 1) ** 2).mean()


critic_gradients = ms.value_and_grad(critic_loss, None, critic.trainable_params())
generator_gradients = ms.value_and_grad(generator_loss, None, generator.trainable_params())

r = np.random.RandomState(48)
angle = r.rand(8, 12) * 2 * np.pi
rows = [(ms.Tensor(np.stack([np.cos(a), np.sin(a)], 1).astype(np.float32)),) for a in angle]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([generator, g_opt], batches, critic=critic, d_opt=d_opt)
    point = manager.restore(state)
    for number, (real,) in enumerate(batches, point.batches_delivered):
        z = ms.Tensor(np.random.default_rng([48, number]).standard_normal((12, 3)).astype(np.float32))
        fake = ops.stop_gradient(generator(z))
        loss, grads = critic_gradients(real, fake)
        d_opt(grads)
        right = (critic(real).asnumpy() > 0.5).mean() / 2 + (critic(fake).asnumpy() <= 0.5).mean() / 2
        loss, grads = generator_gradients(z)
        manager.fence()
        g_opt(grads)
        batch_trained.send(critic, right=float(right), number=number)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
