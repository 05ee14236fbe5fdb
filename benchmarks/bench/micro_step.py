"""What a micro-step costs besides the network: the train cell, and the callback where nothing is saved.

Each case is a process of its own. It trains the same network with the same batches in rounds, each of these once per
round: accumulation written by hand in two graphs, `ckptkit.AccumulationTrainCell`, and `nn.TrainOneStepCell`, which
updates at every step. Figures are medians of rounds. The callback is timed in a training of `Model.train` that saves
nothing.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from .measurement import CHECKOUT
from .options import Options
from .table import table

K, BATCH = 8, 8
ROUNDS, CYCLES = 7, 5  # of each loop
# Weights, and width of the layers; the micro-steps of wide ones take tens of milliseconds, and leave caches cold.
NETWORKS = ((20, 16), (200, 16), (20, 1_536))


def run(options: Options) -> Iterator[list[dict[str, Any]]]:
    """Yield what was found so far, after each case."""
    found = []
    for mode in options.modes:
        for network in NETWORKS[:1] if options.quick or mode == "pynative" else NETWORKS:
            scratch = str(options.scratch / "micro_step")
            command = [sys.executable, "-m", __spec__.name, mode, *map(str, network), scratch]
            done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
            yield found


def tables(found: list[dict[str, Any]]) -> str:
    """One row per case."""
    header = (
        *("mode", "weights", "width", "by hand, us", "train cell, relative", "`TrainOneStepCell`, relative"),
        *("first cycle by hand, s", "train cell, relative", "callback, us"),
    )
    return table(header, [_row(one) for one in found])


def _row(one: dict[str, Any]) -> list[str]:
    hand, first = one["by_hand"], one["first_by_hand"]
    return [
        *(one["mode"], f"{one['weights']:,}", f"{one['width']:,}", f"{1e6 * hand:,.0f}"),
        *(f"{one['train_cell'] / hand:.3f}", f"{one['one_step'] / hand:.3f}"),
        *(f"{first:.2f}", f"{one['first_train_cell'] / first:.2f}", f"{1e6 * one['callback']:,.0f}"),
    ]


def measure(mode: str, weights: int, width: int, scratch: str) -> dict[str, Any]:
    """One case."""
    import mindspore as ms

    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(1)
    steps: dict[str, Callable[..., Any]] = {}
    first = {}
    batches = _batches(width)
    for name, make in (("by_hand", _by_hand), ("train_cell", _train_cell), ("one_step", _one_step)):
        steps[name] = make(weights, width)
        began = time.perf_counter()
        _cycles(steps[name], batches, 1)
        first[name] = time.perf_counter() - began
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        _cycles(step, batches, 60 // K)  # MindSpore decides within 50 launches where it computes
    for at in range(ROUNDS):
        for name in [*steps][:: -1 if at % 2 else 1]:
            began = time.perf_counter()
            _cycles(steps[name], batches, CYCLES)
            seconds[name].append((time.perf_counter() - began) / (CYCLES * K))
    return {
        **{name: statistics.median(each) for name, each in seconds.items()},
        **{f"first_{name}": one for name, one in first.items()},
        "mode": mode,
        "weights": weights,
        "width": width,
        "callback": _callback(weights, width, scratch),
    }


def _cycles(step: Callable[..., Any], batches: Any, cycles: int) -> None:
    for _ in range(cycles):
        for x, y in batches:
            loss = step(x, y)
        loss.asnumpy()


def _batches(width: int) -> list[Any]:
    import mindspore as ms
    import numpy as np

    rng = np.random.default_rng(3)
    return [tuple(ms.Tensor(rng.standard_normal((BATCH, width), np.float32)) for _ in range(2)) for _ in range(K)]


def _network(weights: int, width: int) -> Any:
    from mindspore import nn

    layers = [nn.Dense(width, width) for _ in range(weights // 2)]
    return nn.WithLossCell(nn.SequentialCell(*layers), nn.MSELoss())


def _by_hand(weights: int, width: int) -> Callable[..., Any]:
    import mindspore as ms
    from mindspore import nn, ops

    loss = _network(weights, width).set_train()
    parameters = ms.ParameterTuple(loss.trainable_params())
    optimizer = nn.Adam(parameters, 1e-3)
    sums = parameters.clone(prefix="sum", init="zeros")
    adding, emptying = ops.MultitypeFuncGraph("adding"), ops.MultitypeFuncGraph("emptying")
    averaging = ops.MultitypeFuncGraph("averaging")
    each = ops.HyperMap()

    @adding.register("Tensor", "Tensor")
    def add(total, grad):
        return ops.assign_add(total, grad)

    @emptying.register("Tensor")
    def empty(total):
        return ops.assign(total, ops.zeros_like(total))

    @averaging.register("Tensor")
    def average(total):
        return total / K

    class MicroStep(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.loss, self.parameters, self.sums = loss, parameters, sums

        def construct(self, x, y):
            value, grads = ms.value_and_grad(self.loss, None, self.parameters)(x, y)
            return ops.depend(value, each(adding, self.sums, grads))

    class Update(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.optimizer, self.sums = optimizer, sums

        def construct(self):
            updated = self.optimizer(each(averaging, self.sums))
            return ops.depend(each(emptying, self.sums), updated)

    micro_step, update, done = MicroStep(), Update(), [0]

    def step(x: Any, y: Any) -> Any:
        value = micro_step(x, y)
        done[0] += 1
        if done[0] % K == 0:
            update()
        return value

    return step


def _train_cell(weights: int, width: int) -> Callable[..., Any]:
    from mindspore import nn

    import ckptkit as ck

    loss = _network(weights, width)
    return ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 1e-3), K).set_train()


def _one_step(weights: int, width: int) -> Callable[..., Any]:
    from mindspore import nn

    loss = _network(weights, width)
    return nn.TrainOneStepCell(loss, nn.Adam(loss.trainable_params(), 1e-3)).set_train()


def _callback(weights: int, width: int, scratch: str) -> float:
    """Return the median seconds of what the callback does after a micro-step."""
    import mindspore as ms
    import mindspore.dataset as ds
    import numpy as np

    import ckptkit as ck

    seconds = []

    class Timed(ck.CheckpointCallback):
        def on_train_step_end(self, run_context: Any) -> None:
            began = time.perf_counter()
            super().on_train_step_end(run_context)
            seconds.append(time.perf_counter() - began)

    x = np.random.default_rng(3).standard_normal((BATCH * 400, width), np.float32)
    dataset = ds.NumpySlicesDataset((x, x), ["x", "y"], shuffle=False).batch(BATCH)
    shutil.rmtree(scratch, ignore_errors=True)
    Timed(scratch, save=ck.SaveEvery(optimizer_steps=10**9)).train(ms.Model(_train_cell(weights, width)), 1, dataset)
    shutil.rmtree(scratch)
    return statistics.median(seconds[100:])


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
