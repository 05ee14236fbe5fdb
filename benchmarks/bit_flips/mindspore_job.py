"""A training in MindSpore, of one rank or under ``msrun``, in which hardware may compute wrongly once.

FLIP is ``RANK STEP LEAF BIT``: after that micro-step the bit of the leaf is flipped, counted through all elements of
all parameters of that kind; the file ``flipped`` then says so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.communication import init

import ckptkit as ck

STEPS, K, EVERY = 18, 3, 4


def flip(parameters: list[ms.Parameter], bit: int) -> None:
    for one in parameters:
        value = one.asnumpy().copy()
        if bit < value.size * 32:
            value.reshape(-1).view(np.uint32)[bit // 32] ^= np.uint32(1 << bit % 32)
            ops.assign(one, ms.Tensor(value))
            return
        bit -= value.size * 32
    raise ValueError("no such bit")


def leaves(cell: ck.AccumulationTrainCell) -> dict[str, list[ms.Parameter]]:
    floats = [one for one in cell.accumulators if one.dtype == ms.float32]
    return {
        "weights": list(cell.optimizer.parameters),
        "moments": [*cell.optimizer.moment1, *cell.optimizer.moment2],
        "accumulators": floats,
    }


def main() -> None:
    if "MS_WORKER_NUM" in os.environ:
        init()
        ms.set_auto_parallel_context(parallel_mode="data_parallel")
    rank = int(os.environ.get("RANK_ID", "0"))
    ms.set_seed(1)
    loss = nn.WithLossCell(nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 3)), nn.MSELoss())
    cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.01), K).set_train()
    rng = np.random.default_rng([5, rank])
    rows: list[Any] = [
        tuple(ms.Tensor(rng.normal(size=(4, size)), ms.float32) for size in (6, 3)) for _ in range(STEPS)
    ]
    batches = ck.data.resumable(rows, epochs=1)
    flip_rank, flip_step, leaf, bit = os.environ.get("FLIP", "-1 -1 - 0").split()
    saving, keep = ck.Saving(when_busy="wait"), ck.KeepLatest(9)
    with ck.CheckpointManager("run", save=ck.SaveEvery(micro_steps=EVERY), keep=keep, saving=saving) as manager:
        state = ck.StateManager(cell, batches)
        point = manager.restore(state)
        for step, (x, y) in enumerate(batches, point.batches_delivered + 1):
            cell(x, y)
            if (rank, step) == (int(flip_rank), int(flip_step)):
                flip(leaves(cell)[leaf], int(bit))
                Path("flipped").write_text(os.environ["FLIP"])
            manager.step(state)
        manager.save_final(state)


if __name__ == "__main__":
    main()
