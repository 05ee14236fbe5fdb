"""A training on many ranks of which some die: ``supervised_job.py FOLDER RANK:MICRO_STEP:SIGNAL ...``.

Each happens once: FOLDER holds a file for what has happened. All ranks die where RANK is ``all``. A SIGNAL of SIGCHLD
is the death of a data worker, which MindSpore answers with SIGTERM. The run is in FOLDER/run.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import mindspore as ms
from mindspore import nn
from mindspore.communication import init
from mindspore.train import Callback

import ckptkit as ck
from multirank.msrun.job import Net
from multirank.msrun.life import Digits

SAMPLES, GLOBAL_BATCH, MICRO_BATCH, EPOCHS = 1438, 128, 16, 4


class Misfortune(Callback):
    def __init__(self, folder: Path, rank: int, plan: list[str]) -> None:
        super().__init__()
        self._folder, self._rank = folder, rank
        self._plan = [one.split(":") for one in plan]

    def on_train_step_end(self, run_context) -> None:
        for rank, step, name in self._plan:
            if int(step) != run_context.original_args().cur_step_num or rank not in ("all", str(self._rank)):
                continue
            done = self._folder / f"{rank}-{step}-{name}-of-{self._rank}"
            if not done.exists():
                done.touch()
                if name == "SIGCHLD":
                    self.worker = subprocess.Popen(["/bin/sh", "-c", "kill -9 $$"])
                    os.waitid(os.P_PID, self.worker.pid, os.WEXITED | os.WNOWAIT)
                os.kill(os.getpid(), signal.SIGTERM if name == "SIGCHLD" else signal.Signals[name])


def main() -> None:
    folder = Path(sys.argv[1])
    init()
    ms.set_auto_parallel_context(parallel_mode="data_parallel")
    ms.set_seed(1)
    source = Digits(SAMPLES)
    order = ck.data.GlobalSampler(len(source), global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, seed=1)
    samples = ck.data.Augmented(source, lambda sample, rng: sample, seed=1)
    dataset = samples.dataset(["x", "y"], ranks=order).batch(MICRO_BATCH)
    plan = ck.plan_accumulation(GLOBAL_BATCH, order.world_size, MICRO_BATCH)
    loss = Net()
    optimizer = nn.Adam(loss.trainable_params(), learning_rate=0.01)
    cell = ck.AccumulationTrainCell(loss, optimizer, plan.accumulation_steps, clip_norm=1.0)
    misfortune = Misfortune(folder, order.rank, sys.argv[2:])
    training = ck.Training(read_only=[misfortune], ignore=[misfortune])  # the plan of deaths is no part of the run
    ckpt = ck.CheckpointCallback(folder / "run", save=ck.SaveEvery(optimizer_steps=4), training=training)
    ckpt.train(ms.Model(cell), EPOCHS, dataset, callbacks=[misfortune])


if __name__ == "__main__":
    main()
