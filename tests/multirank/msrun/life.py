"""One rank of one life of a training job, as a user would write it: msrun, data parallel, CheckpointCallback.

It traces the digest of everything that a later step depends on, as the equivalence suite does, and dies where it is
told to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from exactness.equivalence.training import Trace
from mindspore import nn
from mindspore.communication import get_rank, init
from mindspore.train import Model

import ckptkit as ck
from ckptkit.storage import open_storage
from ckptkit.testing.faults import Fault, FaultyStorage
from multirank.msrun.job import Net
from multirank.msrun.launch import begin, report

SAMPLES, GLOBAL_BATCH, MICRO_BATCH, EPOCHS = 40, 16, 2, 3


@dataclass(frozen=True)
class Kill:
    """SIGKILL for some ranks around the micro-step ``at``, or SIGTERM."""

    moment: Literal["step", "saving", "preempted"]
    at: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Life:
    """What a launch is told."""

    world_size: int
    root: str | None = None
    checkpoint: str = "latest"
    elastic: bool = False
    kill: Kill | None = None

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @property
    def accumulation_steps(self) -> int:
        return GLOBAL_BATCH // (self.world_size * MICRO_BATCH)


class Digits:
    """Samples whose number is what they are drawn from."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int):
        rng = np.random.default_rng(number)
        return rng.normal(size=6).astype(np.float32), rng.normal(size=3).astype(np.float32)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(ck.CheckpointCallback):
    """Traces every micro-step before its save, and dies."""

    def __init__(self, life: Life, rank: int, trace: Trace) -> None:
        self._kill = life.kill if life.kill is not None and rank in life.kill.ranks else None
        self._trace = trace
        storage = FaultyStorage(open_storage(life.root))
        if self._kill is not None and self._kill.moment == "saving":
            cycles, micro_step = divmod(self._kill.at, life.accumulation_steps)
            key = f"checkpoints/*-c{cycles:010d}-m{micro_step:04d}/rank-{rank:05d}.json"
            storage.inject(Fault(die, operations={"write"}, key=key))
        super().__init__(
            storage,
            save=ck.SaveEvery(micro_steps=1),
            keep=ck.KeepLatest(100),
            saving=ck.Saving(when_busy="wait"),
            ranks=ck.Ranks(elastic=life.elastic, check_replicas=True),
        )

    def on_train_step_end(self, run_context) -> None:
        params = run_context.original_args()
        self._trace.step(params)
        if self._kill is not None and (self._kill.moment, self._kill.at) == ("preempted", params.cur_step_num):
            os.kill(os.getpid(), signal.SIGTERM)
        super().on_train_step_end(run_context)
        if self._kill is not None and (self._kill.moment, self._kill.at) == ("step", params.cur_step_num):
            die()


class Plain(ms.train.Callback):
    """Traces an uninterrupted training."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def on_train_step_end(self, run_context) -> None:
        self._trace.step(run_context.original_args())


def data(life: Life) -> ds.Dataset:
    order = ck.data.GlobalSampler(SAMPLES, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, seed=5)
    source = ck.data.Augmented(Digits(SAMPLES), lambda sample, rng: (sample[0] + 0 * rng.random(), sample[1]), seed=5)
    return source.dataset(["x", "y"], ranks=order).batch(MICRO_BATCH)


def trained(
    k: int,
    trace_file: str,
    epochs: int,
    dataset: ds.Dataset,
    make: Callable[[Trace], ck.CheckpointCallback] | None,
    **options: object,
) -> dict[str, object]:
    """Train as a user would, or without ckptkit's callback if there is none to ``make``; return what a rank found."""
    network = Net()
    cell = ck.AccumulationTrainCell(network, nn.Adam(network.trainable_params(), 1e-2), k, clip_norm=5.0)
    trace, model, point = Trace(trace_file, cell), Model(cell), ck.ResumePoint()
    if make is None:
        model.train(epochs, dataset, callbacks=[Plain(trace)], dataset_sink_mode=False)
    else:
        point = make(trace).train(model, epochs, dataset, dataset_sink_mode=False, **options)
    weights = [float(value) for weight in cell.optimizer.parameters for value in weight.asnumpy().reshape(-1)]
    return {"checkpoint": point.checkpoint, "began": point.batches_delivered, "weights": weights}


def main(folder: Path, life: Life) -> None:
    begin(folder)
    init()
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    ms.set_seed(11)
    rank = get_rank()
    make = (lambda trace: Mortal(life, rank, trace)) if life.root is not None else None
    trace = str(folder / f"trace-{rank}.jsonl")
    report(folder, rank, trained(life.accumulation_steps, trace, EPOCHS, data(life), make, checkpoint=life.checkpoint))


if __name__ == "__main__":
    fields = json.loads(sys.argv[2])
    main(Path(sys.argv[1]), Life(**{**fields, "kill": fields["kill"] and Kill(**fields["kill"])}))
