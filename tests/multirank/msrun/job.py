"""What each rank of a launch does: trains small nets in many ways, in both modes, and reports digests and numbers.

The same functions train with one rank on the same global micro-batches, for comparison.
"""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import amp, nn, ops
from mindspore.communication import init
from mindspore.train import Model

import ckptkit as ck
from ckptkit.core.process_group import ALONE, World
from ckptkit.mindspore.process_group import world
from ckptkit.mindspore.train.reduce import Reduce
from multirank.msrun.launch import report

MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}
MESSAGES = ("", "abc", "abcd", "é" * 7)
CLIP_NORM = 0.05  # below every norm of these trainings


class Net(nn.Cell):
    """Mean loss; or with ``tokens`` the summed loss and its weight."""

    def __init__(self, *, tokens: bool = False) -> None:
        super().__init__()
        rng = np.random.default_rng(3)
        self.hidden = nn.Dense(6, 8)
        self.out = nn.Dense(8, 3)
        for weight in self.trainable_params():  # the same in every rank and at every call
            weight.set_data(ms.Tensor(rng.normal(0, 0.5, weight.shape), ms.float32))
        self.tokens = tokens

    def construct(self, x: Any, y: Any) -> Any:
        loss = ops.square(self.out(ops.tanh(self.hidden(x))) - y)
        if self.tokens:
            return loss.sum(), ops.ones((), ms.float32) * x.shape[0]
        return loss.mean()


def micro_batch(number: int, *, uneven: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """One of all ranks' micro-batches, which are counted through."""
    rng = np.random.default_rng(100 + number)
    size = 2 + number % 3 if uneven else 4
    return rng.normal(size=(size, 6)).astype(np.float32), rng.normal(size=(size, 3)).astype(np.float32)


def part(ranks: World, steps: int, *, uneven: bool = False) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The micro-batches of one rank, of ``steps`` micro-steps."""
    return (micro_batch(step * ranks.size + ranks.rank, uneven=uneven) for step in range(steps))


def made(k: int, *, tokens: bool = False, **options: Any) -> ck.AccumulationTrainCell:
    network = Net(tokens=tokens)
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    return ck.AccumulationTrainCell(network, optimizer, k, **options).set_train()


def trained(ranks: World, k: int, steps: int, *, uneven: bool = False, **options: Any) -> ck.AccumulationTrainCell:
    cell = made(k, **options)
    for x, y in part(ranks, steps, uneven=uneven):
        cell(ms.Tensor(x), ms.Tensor(y))
    return cell


def weights(cell: ck.AccumulationTrainCell) -> list[float]:
    """All weights end to end; a float32 survives JSON."""
    return [float(one) for weight in cell.optimizer.parameters for one in weight.asnumpy().reshape(-1)]


def digest(*parameters: ms.Parameter) -> str:
    return hashlib.sha256(b"|".join(one.asnumpy().tobytes() for one in parameters)).hexdigest()


def state(cell: ck.AccumulationTrainCell) -> dict[str, str]:
    return {"learned": digest(*cell.optimizer.get_parameters()), "accumulators": digest(*cell.accumulators)}


def norm(cell: ck.AccumulationTrainCell) -> float:
    return float(cell.gradient_norm.asnumpy())


# Trainings that one rank can do as well with `size` times the K: the same micro-batches in the same order.
COMPARED: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"clip_norm": CLIP_NORM},
    "scaled": {"loss_scaler": 1024.0},
    "samples": {"normalize": "samples", "uneven": True},
    "weights": {"normalize": "weights", "uneven": True, "tokens": True},
}
WITH_ROUNDING = ("plain", "clipped")  # of these, where the bits differ anyway


def compared(ranks: World, name: str, k: int, cycles: int) -> dict[str, Any]:
    options = dict(COMPARED[name])
    if "loss_scaler" in options:
        options["loss_scaler"] = amp.DynamicLossScaler(options["loss_scaler"], 2, 100)
    cell = trained(ranks, k, k * cycles, **options)
    return {"weights": weights(cell), "norm": norm(cell), "updates": cell.counters.updates}


def overflowed(ranks: World) -> list[dict[str, Any]]:
    """Three cycles; in the first micro-step of the second, the last rank's gradients overflow and no other's."""
    cell = made(2, loss_scaler=amp.DynamicLossScaler(1024.0, 2, 100))
    seen = []
    for step, (x, y) in enumerate(part(ranks, 6)):
        huge = step == 2 and ranks.rank == ranks.size - 1
        cell(ms.Tensor(x), ms.Tensor(y * np.float32(1e37) if huge else y))
        if step % 2:
            scale = float(cell.loss_scale.scale.asnumpy())
            seen.append({"updated": cell.updated, "scale": scale, "updates": cell.counters.updates, **state(cell)})
    return seen


def ended_early(ranks: World, remainder: str) -> dict[str, Any]:
    """An epoch that ends after one micro-step of the second cycle of two."""
    cell = trained(ranks, 2, 3, remainder=remainder)
    before = weights(cell)
    cell.end_epoch()
    moved = weights(cell) != before
    return {"moved": moved, "updates": cell.counters.updates, "micro_step": cell.counters.micro_step, **state(cell)}


def by_model(ranks: World) -> list[float]:
    """As "plain" of two cycles of two, by ``Model.train``."""
    rows = list(part(ranks, 4))
    columns = {"x": np.concatenate([x for x, _ in rows]), "y": np.concatenate([y for _, y in rows])}
    cell = made(2)
    Model(cell).train(1, ds.NumpySlicesDataset(columns, shuffle=False).batch(4), dataset_sink_mode=False)
    return weights(cell)


def in_buckets(ranks: World) -> dict[str, list[list[float]]]:
    """Three leaves reduced in one bucket, in two and in three, from the same values."""

    def reduced(bucket_bytes: int) -> list[list[float]]:
        leaves = [ms.Parameter(ms.Tensor([1.5 * (ranks.rank + 1)] * size, ms.float32)) for size in (5, 7, 3)]
        Reduce(leaves, bucket_bytes=bucket_bytes)()
        return [[float(value) for value in leaf.asnumpy()] for leaf in leaves]

    return {str(size): reduced(size) for size in (1, 48, 1000)}


def all_of_mode(ranks: World) -> dict[str, Any]:
    return {
        "k2": {name: compared(ranks, name, 2, 2) for name in WITH_ROUNDING},
        "mid_cycle": [state(trained(ranks, 2, 5)) for _ in range(2)],
        "overflow": overflowed(ranks),
        "k1": {name: compared(ranks, name, 1, 4) for name in COMPARED},
        "flush": ended_early(ranks, "flush"),
        "drop": ended_early(ranks, "drop"),
        "model": by_model(ranks),
        "buckets": in_buckets(ranks),
        "broadcast": ranks.broadcast(f"only rank {ranks.rank} is heard, é" + "y" * 5000),
        "gather": list(ranks.gather(f"rank {ranks.rank} é" + "x" * 300 * ranks.rank)),
        "messages": [[*ranks.gather(text), ranks.broadcast(text)] for text in MESSAGES],
    }


def refused(**context: Any) -> str:
    """What a train cell says to a context that is set after its optimizer was made."""
    network = Net()
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    ms.set_auto_parallel_context(**context)
    try:
        ck.AccumulationTrainCell(network, optimizer, 2)
    except ValueError as error:
        return str(error)
    finally:
        ms.reset_auto_parallel_context()
    return "not refused"


def main(folder: Path, mode: str) -> None:
    ms.set_device("CPU")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    found: dict[str, Any] = {"alone": refused(), "not_joined": refused(parallel_mode="data_parallel")}
    apart = trained(ALONE, 2, 1)
    init()
    ranks = world()
    found |= {"rank": ranks.rank, "size": ranks.size, "stand_alone": refused()}
    found["semi_auto"] = refused(parallel_mode="semi_auto_parallel")
    found["parallel_optimizer"] = refused(parallel_mode="data_parallel", enable_parallel_optimizer=True)
    ms.set_auto_parallel_context(parallel_mode="data_parallel")
    try:
        apart(*map(ms.Tensor, micro_batch(0)))
    except ValueError as error:
        found["made_before"] = str(error)
    ms.set_context(mode=MODES[mode])
    found[mode] = all_of_mode(ranks)
    report(folder, ranks.rank, found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
