"""Data parallel on several ranks, one reduction per accumulation cycle.

examples/msrun.sh [RUN_ROOT], or sbatch examples/slurm.sh RUN_ROOT

Kill a rank, or all of them, and start it again: no rank goes on alone, and all go on from one checkpoint. Try another
number of ranks than before, RANKS=4 examples/msrun.sh: the global batches stay the same.
"""

import sys

import mindspore as ms
from mindspore import nn, ops
from mindspore.communication import init

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

GLOBAL_BATCH, MICRO_BATCH, EPOCHS = 128, 16, 3


class Digits:
    def __init__(self):
        self.digits = load_digits()

    def __len__(self):
        return len(self.digits.train_labels)

    def __getitem__(self, index):
        return self.digits.train_images[index], self.digits.train_labels[index]


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))

    def construct(self, image, label):
        return ops.cross_entropy(self.network(image), label)


def main(root):
    init()  # waits for all ranks; the scheduler of the job stays in here until they have ended
    ms.set_auto_parallel_context(parallel_mode="data_parallel")
    ms.set_seed(1)  # the same in every rank: equal weights

    source = Digits()
    order = ck.data.GlobalSampler(len(source), global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, seed=1)
    samples = ck.data.Augmented(source, lambda sample, rng: sample, seed=1)
    dataset = samples.dataset(["image", "label"], ranks=order).batch(MICRO_BATCH)
    plan = ck.plan_accumulation(GLOBAL_BATCH, order.world_size, MICRO_BATCH)

    loss = Loss()
    optimizer = nn.Adam(loss.trainable_params(), learning_rate=0.01)
    cell = ck.AccumulationTrainCell(loss, optimizer, plan.accumulation_steps, clip_norm=1.0)
    model = ms.Model(cell)

    ckpt = ck.CheckpointCallback(
        root, save=ck.SaveEvery(optimizer_steps=20), keep=ck.KeepLatest(3), ranks=ck.Ranks(elastic=True)
    )
    ckpt.train(model, EPOCHS, dataset)
    print(f"rank {order.rank} of {order.world_size}: {cell.counters.updates} updates", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/ranks")
