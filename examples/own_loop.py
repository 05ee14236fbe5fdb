"""A training loop of one's own instead of Model.train: one call around it, and it resumes exactly.

python examples/own_loop.py [RUN_ROOT]

Kill it (Ctrl-C, or SIGKILL) as often as you like and start it again: `ck.loop` puts everything back, in the middle of
a cycle too, gives the batches that are left, and saves after their bodies. Raise EPOCHS after its end, and it goes on
from there. Try another K: the start is refused and says what to do.
"""

import sys

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

EPOCHS, BATCH, K = 2, 48, 4


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))

    def construct(self, image, label):
        return ops.cross_entropy(self.layers(image), label)


def main(root):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(1)
    digits = load_digits()
    dataset = ds.NumpySlicesDataset((digits.train_images, digits.train_labels), ["image", "label"]).batch(BATCH)

    loss = Loss()
    optimizer = nn.Momentum(loss.trainable_params(), 0.1, 0.9)
    cell = ck.AccumulationTrainCell(loss, optimizer, accumulation_steps=K, normalize="samples", remainder="flush")
    cell.set_train()

    run = ck.loop(root, dataset, EPOCHS, train=cell, save=ck.SaveEvery(micro_steps=10), keep=ck.KeepLatest(2))
    for image, label in run:  # all that is left of the epochs
        value = cell(image, label)
        if cell.updated and cell.counters.updates % 10 == 0:
            print(f"epoch {run.epoch}, batch {run.step}: loss {value.asnumpy():.4f}")
    print("training is complete")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/own-loop")
