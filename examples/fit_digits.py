"""Model.fit with evaluation, early stopping and the best checkpoints.

python examples/fit_digits.py [RUN_ROOT]

Kill it (Ctrl-C, or SIGKILL) as often as you like and start it again: the patience of EarlyStopping and which checkpoint
was the best survive, too. `ckptkit ls RUN_ROOT` shows what is kept. Try a kill during the evaluation.
"""

import sys

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops
from mindspore.train import EarlyStopping, LossMonitor, Model

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits


class Classifier(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 48), nn.ReLU(), nn.Dense(48, 10))

    def construct(self, image):
        return self.layers(image)


class Loss(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, image, label):
        return ops.cross_entropy(self.network(image), label)


class Evaluation(nn.Cell):
    """What Model.fit's metrics need: loss, prediction, label."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, image, label):
        prediction = self.network(image)
        return ops.cross_entropy(prediction, label), prediction, label


def main(root):
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    digits = load_digits()
    columns = ["image", "label"]
    train = ds.NumpySlicesDataset((digits.train_images, digits.train_labels), columns).batch(32)
    test = ds.NumpySlicesDataset((digits.test_images, digits.test_labels), columns, shuffle=False).batch(60)

    network = Classifier()
    optimizer = nn.AdamWeightDecay(network.trainable_params(), learning_rate=0.01, weight_decay=0.01)
    cell = ck.AccumulationTrainCell(Loss(network), optimizer, accumulation_steps=4, clip_norm=1.0)
    model = Model(cell, eval_network=Evaluation(network), eval_indexes=[0, 1, 2], metrics={"accuracy"})

    ckpt = ck.CheckpointCallback(
        root,
        save=ck.SaveEvery(optimizer_steps=10),
        keep=ck.KeepLatest(2) | ck.KeepBest(1, metric="accuracy", mode="max"),
    )
    others = [LossMonitor(45), EarlyStopping(monitor="accuracy", patience=3, mode="max")]
    ckpt.fit(model, 8, train, test, callbacks=others)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/fit-digits")
