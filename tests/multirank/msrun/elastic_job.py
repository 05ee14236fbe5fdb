"""A job that continues on another number of ranks, for the doctor: its arguments say what is wrong with it.

It trains in updates of 8 micro-batches of 2 samples, whatever the number of ranks is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.communication import init

import ckptkit as ck

SAMPLES, GLOBAL_BATCH, MICRO_BATCH = 64, 16, 2


class Tally:
    """A rank's own state, stored by name; with ``forgets``, it takes only what as many ranks have stored."""

    def __init__(self, ranks: int, *, forgets: bool) -> None:
        self.ranks = ranks
        self.seen = np.zeros(6, np.float32)
        self.batches = 0
        self._forgets = forgets

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen.copy(), "batches": self.batches, "ranks": self.ranks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]
        if state["ranks"] == self.ranks or not self._forgets:
            self.seen = np.array(state["seen"])


def main(what: list[str]) -> None:
    ranks, rank = 1, 0
    if "MS_WORKER_NUM" in os.environ:
        init()
        ms.set_auto_parallel_context(parallel_mode="data_parallel")
        ranks, rank = int(os.environ["MS_WORKER_NUM"]), int(os.environ["RANK_ID"])
    ms.set_seed(1)
    rng = np.random.default_rng(5)
    x, y = (rng.normal(size=(SAMPLES, size)).astype(np.float32) for size in (6, 3))
    loss = nn.WithLossCell(nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 3)), nn.MSELoss())
    plan = ck.plan_accumulation(GLOBAL_BATCH, ranks, MICRO_BATCH)
    cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.01), plan.accumulation_steps).set_train()
    tally = Tally(ranks, forgets="forgets" in what)
    order = ck.data.GlobalIndices(
        SAMPLES, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, seed=7, rank=rank, world_size=ranks
    )
    batches = ck.data.resumable(order, epochs=3)
    by_rank = "by-rank" in what
    elastic = ck.Ranks(elastic="rigid" not in what)
    with ck.CheckpointManager("run", save=ck.SaveEvery(optimizer_steps=1), ranks=elastic) as manager:
        parts = (cell,) if by_rank else (cell, batches)
        state = ck.StateManager(*parts, ranks=elastic, tally=tally)
        point = manager.restore(state)
        for numbers in own_part(point.batches_delivered, rank, ranks) if by_rank else batches:
            chosen = numbers % SAMPLES
            cell(ms.Tensor(x[chosen]), ms.Tensor(y[chosen]))
            tally.seen += x[chosen].sum(axis=0)
            tally.batches += 1
            manager.step(state)
        manager.save_final(state)


def own_part(done: int, rank: int, ranks: int) -> Iterator[np.ndarray]:
    """Each rank's own stretch of the data, from where it has come."""
    size = SAMPLES // ranks
    for step in range(done, 3 * size // MICRO_BATCH):
        first = rank * size + step * MICRO_BATCH % size
        yield np.arange(first, first + MICRO_BATCH)


if __name__ == "__main__":
    main(sys.argv[1:])
