# truth: differs
# class: attribute
# A least-squares GAN on points of a ring; the discriminator also sees older fakes from a pool, as in CycleGAN.

import os
import random

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(121)
random.seed(121)
np.random.seed(121)


class ImagePool:
    def __init__(self, size=40):
        self.size, self.images = size, []

    def query(self, images):
        chosen = []
        for image in images:
            if len(self.images) < self.size:
                self.images.append(image)
                chosen.append(image)
            elif random.random() > 0.5:
                at = random.randrange(self.size)
                chosen.append(self.images[at])
                self.images[at] = image
            else:
                chosen.append(image)
        return np.stack(chosen)


G = nn.SequentialCell(nn.Dense(3, 16), nn.Tanh(), nn.Dense(16, 2))
D = nn.SequentialCell(nn.Dense(2, 16), nn.Tanh(), nn.Dense(16, 1))
G.update_parameters_name("g.")
D.update_parameters_name("d.")
opt_g = nn.Adam(G.trainable_params(), 3e-3, beta1=0.5)
opt_d = nn.Adam(D.trainable_params(), 3e-3, beta1=0.5)
g_grad = ms.value_and_grad(lambda z: ((D(G(z)) - 1) ** 2).mean(), None, G.trainable_params())
d_grad = ms.value_and_grad(
    lambda real, fake: ((D(real) - 1) ** 2).mean() + (D(fake) ** 2).mean(), None, D.trainable_params()
)

angle = np.random.RandomState(21).rand(80) * 2 * np.pi
ring = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
train = ds.NumpySlicesDataset((ring,), ["point"], shuffle=True).batch(8)
pool = ImagePool()

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([G, D, opt_g], batches, opt_d=opt_d)
    manager.restore(state)
    for (real,) in batches:
        z = ms.Tensor(np.random.randn(8, 3).astype(np.float32))
        g_loss, grads = g_grad(z)
        opt_g(grads)
        d_loss, grads = d_grad(real, ms.Tensor(pool.query(G(z).asnumpy())))
        opt_d(grads)
        manager.step(state, {"g_loss": g_loss, "d_loss": d_loss})
    manager.save_final(state)
os._exit(0)
