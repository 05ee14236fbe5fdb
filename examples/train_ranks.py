"""Data parallel on several ranks, one reduction per accumulation cycle: start it, kill it, start it again.

examples/msrun.sh [RUN_ROOT], or examples/slurm.sh [RUN_ROOT] by sbatch
"""

import sys

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops
from mindspore.communication import get_group_size, get_rank, init

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))

    def construct(self, image, label):
        return ops.cross_entropy(self.network(image), label)


def main(root):
    init()  # waits for all ranks; the scheduler of the job stays in here until they have ended
    ms.set_auto_parallel_context(parallel_mode="data_parallel")
    ms.set_seed(1)  # the same in every rank: equal weights, and parts of one and the same order of the samples
    digits = load_digits()
    columns = (digits.train_images, digits.train_labels)
    part = ds.NumpySlicesDataset(columns, ["image", "label"], num_shards=get_group_size(), shard_id=get_rank())
    dataset = part.batch(16, drop_remainder=True)

    loss = Loss()
    optimizer = nn.Adam(loss.trainable_params(), learning_rate=0.01)
    cell = ck.AccumulationTrainCell(loss, optimizer, accumulation_steps=4, clip_norm=1.0)
    model = ms.Model(cell)

    ckpt = ck.CheckpointCallback(root, save=ck.SaveEvery(optimizer_steps=20), keep=ck.KeepLatest(3))
    ckpt.train(model, 3, dataset)
    print(f"rank {get_rank()} of {get_group_size()}: {cell.counters.updates} updates", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/ranks")
