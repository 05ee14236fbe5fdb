"""Checkpoints in a bucket of S3 or of any store that speaks its protocol, without a file system in between.

python examples/train_on_s3.py s3://BUCKET/FOLDER [--endpoint URL] [--encrypt aws:kms]

Keys come from where the AWS command line finds them: the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY),
~/.aws, or the machine's role. `ckptkit ls s3://BUCKET/FOLDER` shows the run from anywhere; `ckptkit copy` fetches it.

Kill it (Ctrl-C, or SIGKILL) as often as you like and start it again, on another machine if you like: nothing is needed
there but the script and the URL. What was not committed is done again, to the same bits. Try also: take the network
away for a minute. Training goes on, and the save that was under way is finished when the bucket answers again.
"""

import argparse
from datetime import timedelta

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

EPOCHS, BATCH, K = 2, 48, 4


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 128), nn.ReLU(), nn.Dense(128, 10))

    def construct(self, image, label):
        return ops.cross_entropy(self.network(image), label)


def storage_options(arguments):
    """What differs from the defaults; all options are in docs/object-storage.md."""
    options = {
        "max_concurrency": 8,  # parts on their way at once; each has a buffer of 16 MiB
        "retry_for": timedelta(minutes=30),  # an outage that a save sits out
    }
    if arguments.endpoint:
        options["endpoint_url"] = arguments.endpoint
    if arguments.encrypt:
        options["s3_additional_kwargs"] = {"ServerSideEncryption": arguments.encrypt}
    return options


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", help="s3://BUCKET/FOLDER, a folder of its own for each run")
    parser.add_argument("--endpoint", help="of a store that is not Amazon's; default AWS_ENDPOINT_URL")
    parser.add_argument("--encrypt", help="server-side encryption: AES256 or aws:kms")
    arguments = parser.parse_args()

    ms.set_seed(1)
    digits = load_digits()
    dataset = ds.NumpySlicesDataset((digits.train_images, digits.train_labels), ["image", "label"]).batch(BATCH)
    loss = Loss()
    cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.01), accumulation_steps=K)

    ckpt = ck.CheckpointCallback(
        arguments.root,
        save=ck.SaveEvery(micro_steps=14) | ck.SaveEvery(interval=timedelta(minutes=10)),
        keep=ck.KeepLatest(3) | ck.KeepEvery(optimizer_steps=1000),
        storage_options=storage_options(arguments),
    )
    ckpt.train(ms.Model(cell), EPOCHS, dataset)


if __name__ == "__main__":
    main()
