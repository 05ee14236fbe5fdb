"""The entry script of a ModelArts job: a fast commit on the node's own disk, and a copy of it in OBS.

python examples/modelarts_obs.py --train_url obs://BUCKET/FOLDER [--cache FOLDER]

In the image: `pip install '.[s3]'` in ckptkit's folder. In the job: this file as boot file, the hyperparameter
train_url, and the environment variables OBS_ACCESS_KEY_ID, OBS_SECRET_ACCESS_KEY and OBS_ENDPOINT
(https://obs.REGION.myhuaweicloud.com).
Let the platform restart the job after a failure: the same command goes on. On the same node it does so from the disk;
on another one, whose disk is empty, from what lies in OBS. Without --cache it saves to OBS alone. Only the end of a
training waits for the upload. Not tried against the real service: docs/obs.md says what is known.

Kill it (SIGKILL) and delete the cache, and start it again: that is a node that was replaced.
"""

import argparse

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

BATCH, K = 48, 4


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))

    def construct(self, image, label):
        return ops.cross_entropy(self.network(image), label)


def arguments_of_the_job():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_url", required=True, help="obs://BUCKET/FOLDER, a folder of its own for each run")
    parser.add_argument("--cache", help="a folder on the node's disk, such as /cache/run")
    parser.add_argument("--epochs", type=int, default=2)
    known, unknown = parser.parse_known_args()  # a platform may add arguments of its own
    if unknown:
        print("not used:", *unknown)
    return known


def checkpoints(arguments):
    save = ck.SaveEvery(micro_steps=14)
    if not arguments.cache:
        return ck.CheckpointCallback(arguments.train_url, save=save, keep=ck.KeepLatest(3))
    return ck.CheckpointCallback(
        arguments.cache,
        save=save,
        keep=ck.KeepLatest(2),
        mirror=ck.Mirror(arguments.train_url, keep=ck.KeepLatest(3) | ck.KeepEvery(optimizer_steps=1000)),
    )


def main():
    arguments = arguments_of_the_job()
    ms.set_seed(1)
    digits = load_digits()
    dataset = ds.NumpySlicesDataset((digits.train_images, digits.train_labels), ["image", "label"]).batch(BATCH)
    loss = Loss()
    cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.01), accumulation_steps=K)
    checkpoints(arguments).train(ms.Model(cell), arguments.epochs, dataset)


if __name__ == "__main__":
    main()
