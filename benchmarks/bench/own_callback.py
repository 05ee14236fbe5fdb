"""What a save costs a training by `Model.train` that has an ordinary callback of its own: one that logs the loss.

The weights have the shapes of `workload.like_a_model`, and each of them is trained; every save is one of
`CheckpointCallback`. A stall is the call of the callback that saves, less that of a micro-step that saves nothing, and
what the fence of that save takes later.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback, Model

import ckptkit as ck

from .measurement import measure
from .options import MIB, Options
from .systems.workload import like_a_model, timed
from .table import cell, table


class Network(nn.Cell):
    """The mean square of each weight, added up."""

    def __init__(self, mib: int) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        shapes = like_a_model(mib).items()
        self.weights = ms.ParameterTuple(
            [ms.Parameter(ms.Tensor(rng.standard_normal(shape, np.float32)), name=name) for name, shape in shapes]
        )

    def construct(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
        total = ((x - y) * 0).sum()
        for weight in self.weights:
            total = total + (weight * weight).mean()
        return total


class LogLoss(Callback):
    """What a user writes: it looks at the loss now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_step_end(self, run_context: Any) -> None:
        params = run_context.original_args()
        if params.cur_step_num % 10 == 0:
            self.losses.append(float(params.net_outputs.asnumpy()))


def measure_saves(options: Options) -> dict[str, Any]:
    """One training, whose first saves make buffers and are left out."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    network = Network(options.mib)
    optimizer = nn.Adam(network.trainable_params(), 1e-3)
    train_cell = ck.AccumulationTrainCell(network, optimizer, options.micro_steps).set_train()
    between = options.micro_steps * options.cycles
    saving: list[float] = []
    others: list[float] = []
    reports: list[ck.SaveReport] = []

    class Timed(ck.CheckpointCallback):
        def on_train_step_end(self, run_context: Any) -> None:
            network.weights[-1].asnumpy()  # a save waits for the device, which is not its cost
            began = time.perf_counter()
            super().on_train_step_end(run_context)
            is_saving = run_context.original_args().cur_step_num % between == 0
            (saving if is_saving else others).append(time.perf_counter() - began)

    x = np.zeros((between * (options.saves + 3) + 1, 1), np.float32)
    dataset = ds.NumpySlicesDataset((x, x), ["x", "y"], shuffle=False).batch(1)
    shutil.rmtree(options.scratch, ignore_errors=True)
    callback = Timed(
        options.scratch,
        save=ck.SaveEvery(optimizer_steps=options.cycles),
        keep=ck.KeepLatest(2),
        saving=ck.Saving(when_busy="wait", on_save=reports.append),
    )
    callback.train(Model(train_cell), 1, dataset, callbacks=[LogLoss()])
    shutil.rmtree(options.scratch)
    fences = [report.cost.fence_seconds for report in reports]
    plain = median(others)
    source = np.ones(options.mib * MIB, np.uint8)
    target = source.copy()
    memcpy = 4 * min(timed(np.copyto, target, source) for _ in range(7))
    stalls = [call - plain + fence for call, fence in list(zip(saving, fences, strict=False))[2:]]
    return {"memcpy": memcpy, "plain": plain, "stalls": stalls}


def run(options: Options) -> Iterator[list[dict[str, Any]]]:
    """Measure every round in a fresh process; yield all rounds so far."""
    rounds = []
    for _ in range(options.rounds):
        rounds.append(measure("own_callback:measure_saves", options))
        yield rounds


def tables(rounds: list[dict[str, Any]]) -> str:
    """One row, of all rounds."""
    stalls = [stall for measured in rounds for stall in measured["stalls"]]
    return table(
        ("stall ms", "stall / memcpy", "callback without a save, us"),
        [
            [
                cell([1e3 * stall for stall in stalls], 1),
                cell([stall / measured["memcpy"] for measured in rounds for stall in measured["stalls"]]),
                cell([1e6 * measured["plain"] for measured in rounds], 0),
            ]
        ],
    )
