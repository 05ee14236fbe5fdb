"""Fine-tuning as with LoRA: a frozen base that is stored once, two small matrices beside each layer, small checkpoints.

python examples/lora_digits.py [RUN_ROOT [GRAPH | PYNATIVE]]

The first start trains a base on the digits 0 to 4 and writes it to BASE; that file stands for the pretrained model that
you have. Then adapters learn all ten digits. `frozen=` declares what training never changes: the first checkpoint of a
start writes it once, the later ones refer to it, and a save only reads it again to see that it has not changed. The
line that each save prints, and `ckptkit ls RUN_ROOT`, show what a checkpoint took.

Kill it (Ctrl-C, or SIGKILL) as often as you like and start it again. To enlarge: WIDTH, RANK, and your model in `Base`.
"""

import os
import sys
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.common.initializer import HeUniform, initializer

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

BASE = Path("runs/lora-base.ckpt")
WIDTH, RANK, SCALE = 384, 4, 2.0
EPOCHS, BATCH, K = 3, 32, 4


class Base(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.first, self.second, self.last = nn.Dense(64, WIDTH), nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, 10)

    def construct(self, image):
        return self.last(ops.relu(self.second(ops.relu(self.first(self.flatten(image))))))


class Adapted(nn.Cell):
    """A layer plus the product of two small matrices; the second starts at zero, so that nothing changes at first."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.down = ms.Parameter(initializer(HeUniform(), (layer.in_channels, RANK)))
        self.up = ms.Parameter(initializer("zeros", (RANK, layer.out_channels)))

    def construct(self, x):
        return self.layer(x) + ops.matmul(ops.matmul(x, self.down), self.up) * SCALE


def digits(labels):
    """The training digits among `labels`, as micro-batches."""
    every = load_digits()
    chosen = np.isin(every.train_labels, labels)
    columns = {"image": every.train_images[chosen], "label": every.train_labels[chosen]}
    return ds.NumpySlicesDataset(columns, shuffle=True).batch(BATCH, drop_remainder=True)


def pretrain():
    ms.set_seed(1)
    base = Base()
    loss = nn.WithLossCell(base, nn.CrossEntropyLoss())
    step = nn.TrainOneStepCell(loss, nn.Adam(base.trainable_params(), 1e-3)).set_train()
    for image, label in digits(range(5)).repeat(3).create_tuple_iterator():
        step(image, label)
    BASE.parent.mkdir(parents=True, exist_ok=True)
    unfinished = BASE.with_suffix(f".{os.getpid()}.ckpt")
    ms.save_checkpoint(base, str(unfinished))
    unfinished.rename(BASE)  # a start that is killed in here leaves no half of it


def adapted_base():
    base = Base()
    ms.load_param_into_net(base, ms.load_checkpoint(str(BASE)), strict_load=True)
    for parameter in base.get_parameters():
        parameter.requires_grad = False
    base.first, base.second, base.last = Adapted(base.first), Adapted(base.second), Adapted(base.last)
    return base


def main(root="runs/lora-digits", mode="GRAPH"):
    ms.set_context(mode=getattr(ms, f"{mode}_MODE"))
    if not BASE.exists():
        pretrain()
    ms.set_seed(1)  # after what only the first start does
    network = adapted_base()
    untrained = [parameter.name for parameter in network.get_parameters() if not parameter.requires_grad]
    loss = nn.WithLossCell(network, nn.CrossEntropyLoss())
    cell = ck.AccumulationTrainCell(loss, nn.Adam(network.trainable_params(), 5e-3), accumulation_steps=K)

    ckpt = ck.CheckpointCallback(
        root,
        save=ck.SaveEvery(micro_steps=14),
        keep=ck.KeepLatest(3),
        frozen=untrained,
        saving=ck.Saving(on_save=lambda saved: print(f"{saved.checkpoint}: {saved.size_bytes / 1024:.0f} KiB written")),
    )
    ckpt.train(ms.Model(cell), EPOCHS, digits(range(10)), callbacks=[ms.train.LossMonitor(44)])


if __name__ == "__main__":
    main(*sys.argv[1:])
