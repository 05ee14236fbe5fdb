"""A MindSpore training that reads pictures: ``python pictures_job.py ROOT FOLDER``."""

from __future__ import annotations

import sys

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops
from mindspore.dataset import vision

import ckptkit as ck


class Loss(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.SequentialCell(nn.Flatten(), nn.Dense(8 * 8 * 3, 2))

    def construct(self, image, label):
        return ops.cross_entropy(self.network(image), label)


def main() -> None:
    root, folder = sys.argv[1:]
    ms.set_seed(1)
    dataset = ds.ImageFolderDataset(folder, shuffle=False, decode=True)
    dataset = dataset.map([vision.Rescale(1 / 255, 0), vision.HWC2CHW()], "image").batch(2)
    loss = Loss()
    cell = ck.AccumulationTrainCell(loss, nn.SGD(loss.trainable_params(), 0.01), accumulation_steps=2)
    ck.CheckpointCallback(root, save=ck.SaveEvery(optimizer_steps=2)).train(ms.Model(cell), 1, dataset)


if __name__ == "__main__":
    main()
