"""A vision model of the mindcv package on real digits: its model, loss, schedule and optimizer, resumed exactly.

pip install mindcv, then python examples/mindcv_digits.py [RUN_ROOT [GRAPH | PYNATIVE]]

Kill it (Ctrl-C, or SIGKILL) as often as you like and start it again: the statistics of BatchNorm, the moments of AdamW,
the half-filled accumulators and the augmentation go on where they were. Three things to take over:

- mindcv's nn.Dropout draws numbers that no checkpoint can hold. `replace_dropout` puts ckptkit's in its place; if one
  is left somewhere, ckptkit names it before training.
- mindcv's schedules count optimizer steps, and there is one per K batches.
- Augmentation that takes its random numbers as an argument needs no replay, however far the run has come.

To enlarge: `mindcv.create_model(NAME)` with one of `mindcv.list_models()`, and your images in `Digits`.
mindcv is Apache-2.0; nothing of it is copied here, and no pretrained weights are downloaded.
"""

import sys

import mindcv
import mindspore as ms
import numpy as np
from mindcv.models import DenseNet
from mindspore import nn

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

EPOCHS, BATCH, K = 6, 32, 4
TRAIN, SIZE = 384, 32  # of the 1438 digits; pixels


class Digits:
    """Item i is an image of 8x8 and its label."""

    def __init__(self):
        digits = load_digits()
        self.images, self.labels = digits.train_images[:TRAIN], digits.train_labels[:TRAIN]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def augment(sample, rng):
    """Shift by up to a pixel, enlarge; `rng` is made of the seed, the epoch and the index."""
    image, label = sample
    image = np.roll(image, rng.integers(-1, 2, 2), axis=(1, 2))
    return np.repeat(np.repeat(image, SIZE // 8, axis=1), SIZE // 8, axis=2), label


def main(root="runs/mindcv-digits", mode="GRAPH"):
    ms.set_context(mode=getattr(ms, f"{mode}_MODE"))
    ms.set_seed(1)
    dataset = ck.data.Augmented(Digits(), augment, seed=1).dataset(["image", "label"]).batch(BATCH)

    network = DenseNet(12, (2, 2), num_init_features=16, drop_rate=0.1, in_channels=1, num_classes=10)
    ck.nn.replace_dropout(network)
    rates = mindcv.create_scheduler(
        dataset.get_dataset_size() // K,
        "cosine_decay",
        lr=5e-3,
        warmup_epochs=1,
        decay_epochs=EPOCHS - 1,
        num_epochs=EPOCHS,
    )
    optimizer = mindcv.create_optimizer(network.trainable_params(), "adamw", lr=rates, weight_decay=0.05)
    loss = nn.WithLossCell(network, mindcv.create_loss("CE", label_smoothing=0.1))
    cell = ck.AccumulationTrainCell(loss, optimizer, accumulation_steps=K, clip_norm=5.0)

    ckpt = ck.CheckpointCallback(root, save=ck.SaveEvery(micro_steps=6), keep=ck.KeepLatest(2))
    ckpt.train(ms.Model(cell), EPOCHS, dataset, callbacks=[ms.train.LossMonitor(12)])


if __name__ == "__main__":
    main(*sys.argv[1:])
