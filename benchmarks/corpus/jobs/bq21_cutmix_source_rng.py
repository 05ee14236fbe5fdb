# truth: exact
# class: data

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

ROOT = os.environ["ROOT"]
ms.set_seed(19)


class RandomCrop:
    def __init__(self, padding, seed):
        self.padding, self.rng = padding, np.random.RandomState(seed)

    def __call__(self, image):
        p = self.padding
        padded = np.pad(image, p)
        top, left = self.rng.randint(0, 2 * p + 1, 2)
        return padded[top : top + image.shape[0], left : left + image.shape[1]]


class Digits:
    def __init__(self, n, transform=None):
        digits = load_digits()
        self.images = digits.train_images.reshape(-1, 8, 8).astype(np.float32)[:n]
        self.labels = digits.train_labels.reshape(-1).astype(np.int32)[:n]
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i]
        if self.transform is not None:
            image = self.transform(image)
        return image, self.labels[i]


def cutmix(images, labels, beta=1.0):
    """As in the paper, with numpy's global generator."""
    lam = np.random.beta(beta, beta)
    order = np.random.permutation(len(images))
    side = int(8 * np.sqrt(1 - lam))
    top, left = np.random.randint(0, 8 - side + 1, 2)
    images[:, top : top + side, left : left + side] = images[order, top : top + side, left : left + side]
    return images, labels, labels[order], 1 - side * side / 64


train = ds.GeneratorDataset(Digits(256, RandomCrop(1, 5)), ["image", "label"], shuffle=True, num_parallel_workers=1)
train = train.batch(32, drop_remainder=True)
net = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def forward(x, a, b, lam):
    logits = net(x)
    return lam * ops.cross_entropy(logits, a) + (1 - lam) * ops.cross_entropy(logits, b)


grad_fn = ms.value_and_grad(forward, None, optimizer.parameters)
run = ck.loop(
    ROOT,
    train,
    epochs=4,
    train=[net, optimizer],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for image, label in run:
    number = run.step
    x, a, b, lam = cutmix(image.asnumpy().copy(), label.asnumpy())
    loss, grads = grad_fn(Tensor(x), Tensor(a), Tensor(b), lam)
    optimizer(grads)
    if number % 8 == 7:
        print("epoch", run.epoch, "loss", float(loss))
os._exit(0)
