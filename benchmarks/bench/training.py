"""Saving beside MindSpore's own computation, which uses every core: a training by `AccumulationTrainCell`.

Twelve dense layers of 2,048 and Adam: 201 million bytes of weights, four times that of state. The loop waits for each
cycle's end, as every loop that reports a loss does; loops with a save every second cycle alternate with loops without.
ckptkit saves as users have it save, through `CheckpointManager.step` and a `StateManager`; MindSpore saves the same
cell.
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

from .files import remove
from .measurement import measure
from .options import MIB, Options
from .systems.mindspore_systems import MindSpore
from .systems.workload import timed
from .table import cell, table
from .watcher import Watcher

SIZE = {"layers": 12, "width": 2048, "batch": 32}
CYCLES = (2, 1)  # between two saves, in two tables
MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}


class Loss(nn.Cell):
    """Mean square of what the layers make of their input."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.SequentialCell(*[nn.Dense(width, width, activation="relu") for _ in range(layers)])

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        y = self.layers(x)
        return (y * y).mean()


class NoSaves:
    """Nothing."""

    def after_micro_step(self) -> None:
        pass

    def make_room(self) -> None:
        pass

    def wait(self) -> None:
        pass


NOTHING = NoSaves()


class MindSporeSaves:
    """MindSpore's asynchronous save of the whole cell."""

    def __init__(self, cell: ck.AccumulationTrainCell, folder: Path, cycles: int, kind: str) -> None:
        self._cell = cell
        self._cycles = cycles
        self._saving = MindSpore(cell, folder, kind)
        self._saved: list[int] = []
        self.wait = self._saving.wait

    def after_micro_step(self) -> None:
        counters = self._cell.counters
        if counters.micro_step == 0 and counters.cycles % self._cycles == 0:
            self._saving.save(counters.cycles)
            self._saved.append(counters.cycles)

    def make_room(self) -> None:
        while len(self._saved) > 1:
            remove(self._saving.path(self._saved.pop(0)))


class CkptKitSaves:
    """ckptkit, with the least retention that it has; waits for a save under way, so that none is left out."""

    def __init__(self, cell: ck.AccumulationTrainCell, folder: Path, cycles: int) -> None:
        self._manager = ck.CheckpointManager(
            folder,
            save=ck.SaveEvery(optimizer_steps=cycles),
            keep=ck.KeepLatest(2),
            saving=ck.Saving(when_busy="wait", on_error="raise"),
        )
        self._state = ck.StateManager(cell)
        self._manager.restore(self._state)
        self.wait = self._manager.wait

    def after_micro_step(self) -> None:
        self._manager.step(self._state)

    def make_room(self) -> None:
        pass


SAVES: dict[str, Callable[[ck.AccumulationTrainCell, Path, int], Any]] = {
    "none": lambda cell, folder, cycles: NOTHING,
    "mindspore-ckpt": partial(MindSporeSaves, kind="ckpt"),
    "mindspore-safetensors": partial(MindSporeSaves, kind="safetensors"),
    "ckptkit": CkptKitSaves,
}


def measure_mode(options: Options, name: str, mode: str, size: dict[str, int], cycles: int) -> dict[str, Any]:
    """Loops with and without saves, in turn."""
    shutil.rmtree(options.scratch, ignore_errors=True)
    ms.set_device("CPU")
    ms.set_context(mode=MODES[mode])
    ms.set_seed(1)
    loss = Loss(size["layers"], size["width"])
    optimizer = nn.Adam(loss.trainable_params(), learning_rate=1e-4)
    cell = ck.AccumulationTrainCell(loss, optimizer, accumulation_steps=options.micro_steps)
    cell.set_train()
    batch = ms.Tensor(np.random.default_rng(1).standard_normal((size["batch"], size["width"]), np.float32))
    saves = SAVES[name](cell, options.scratch, cycles)
    training = _Training(cell, batch)
    # Compiles. Saves nothing yet, since the first loop's memory is what the others' is held against.
    for _ in range(cycles):
        training.cycle()
    found: dict[str, Any] = {"system": name, "mode": mode, "cycles": cycles, "micro": training.micro_step_seconds()}
    with Watcher(lambda label: True) as watcher:
        for pair in range(options.pairs):
            for kind in ("without", "with") if pair % 2 == 0 else ("with", "without"):
                loop = _run_loop(training, saves if kind == "with" else NOTHING, watcher, options.saves, cycles)
                found.setdefault(kind, []).append(loop)
    shutil.rmtree(options.scratch, ignore_errors=True)
    return found


class _Training:
    def __init__(self, cell: ck.AccumulationTrainCell, batch: ms.Tensor) -> None:
        self.cell = cell
        self._batch = batch

    def cycle(self, saves: Any = NOTHING) -> float:
        """Train one; returns the seconds that ``saves`` took after its last micro-step."""
        for _ in range(self.cell.accumulation_steps - 1):
            self.cell(self._batch)
            saves.after_micro_step()
        self.cell(self._batch)
        self.settle()
        return timed(saves.after_micro_step)

    def settle(self) -> None:
        """Wait for every operation; otherwise a save would be charged for the update that it waits for."""
        self.cell.accumulators[-1].asnumpy()

    def micro_step_seconds(self) -> float:
        """Median of one cycle's, without the last; two cycles go by."""
        self.cycle()
        took = []
        for _ in range(self.cell.accumulation_steps):
            took.append(timed(lambda: (self.cell(self._batch), self.settle())))
        return median(took[:-1] or took)


def _run_loop(training: _Training, saves: Any, watcher: Watcher, count: int, cycles: int) -> dict[str, Any]:
    """``count`` saves, and cycles after the last that it may overlap with."""
    while training.cell.counters.cycles % cycles:
        training.cycle()
    gc.collect()
    os.sync()
    watcher.forget_peak()
    stalls: list[float] = []
    paused = 0.0
    began = time.perf_counter()
    for cycle in range(1, (count + 1) * cycles):
        paused += timed(saves.make_room)
        seconds = training.cycle(saves)
        if cycle % cycles == 0:
            stalls.append(seconds)
    saves.wait()
    return {"wall": time.perf_counter() - began - paused, "stalls": stalls, "peak": watcher.peak_bytes()}


def run(options: Options, size: Mapping[str, int] = SIZE) -> Iterator[dict[str, Any]]:
    """Every mode and system, one process each; gives what is known after each."""
    found: dict[str, Any] = {"size": dict(size), "saves": options.saves, "k": options.micro_steps, "systems": []}
    for number in range(options.rounds):
        for mode, cycles in itertools.product(options.modes, CYCLES):
            for name in [one for one in options.systems if one in SAVES][:: -1 if number % 2 else 1]:
                print(f"training: {name}, {mode}, a save every {cycles} cycles", flush=True)
                how = {"name": name, "mode": mode, "size": found["size"], "cycles": cycles}
                found["systems"].append(measure("training:measure_mode", options, one_thread=False, **how))
                yield found


def tables(found: dict[str, Any]) -> str:
    """For people."""
    size = found["size"]
    weights = 4 * size["layers"] * size["width"] * (size["width"] + 1)
    state = 4 * weights
    text = (
        f"{size['layers']} dense layers of {size['width']}, batch {size['batch']}, Adam, K = {found['k']}, "
        f"{found['saves']} saves per loop; {3 * weights / MIB:.0f} MiB without the accumulators. "
        "A stall is the call that saves; what a fence costs later is in the slowdown."
    )
    header = [
        "mode",
        "cycles per save",
        "system",
        "micro-step ms",
        "stall ms",
        "loop slowdown",
        "lost s per save",
        "extra peak / state",
    ]
    kinds = dict.fromkeys((one["mode"], one["cycles"], one["system"]) for one in found["systems"])
    rows = []
    for kind in kinds:
        several = [one for one in found["systems"] if (one["mode"], one["cycles"], one["system"]) == kind]
        pairs = [pair for one in several for pair in zip(one["without"], one["with"], strict=True)]
        rows.append(
            [
                *map(str, kind),
                cell([1e3 * one["micro"] for one in several], 0),
                cell([1e3 * stall for _, loop in pairs for stall in loop["stalls"]], 1),
                cell([loop["wall"] / without["wall"] for without, loop in pairs], 3),
                cell([(loop["wall"] - without["wall"]) / found["saves"] for without, loop in pairs], 3),
                cell(
                    [
                        (loop["peak"][0] - one["without"][0]["peak"][0]) / state
                        for one in several
                        for loop in one["with"]
                    ]
                ),
            ]
        )
    return f"{text}\n\n{table(header, rows)}"
