"""How the cost of a save grows: with the number of tensors, with their bytes, and with the length of the window.

Guarantees of the figures: one process per point; each save begins when the one before is complete, and in the first
part its fence comes at once, so that nothing overlaps. In the others the fence comes at the end of a cycle.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

import ckptkit as ck

from . import files
from .loop import Plan, run_loop, stall_of
from .measurement import MeasurementError, measure
from .options import MIB, Options
from .systems import find
from .systems.mindspore_trainer import Trainer
from .systems.workload import build, equal, like_a_model, timed
from .table import cell, table
from .watcher import Watcher

TENSORS = (10, 100, 1_000, 10_000, 100_000)
TENSORS_MIB = 256
SIZES_MIB = (12, 48, 192, 512)  # of the weights: a state of 48 MiB to 2 GiB
STEPS = (1, 2, 4, 8, 16, 32)
REPEATS = 5


def measure_tensors(options: Options, name: str, count: int, mib: int) -> dict[str, Any]:
    """Saves of so many equal tensors, all weights."""
    shutil.rmtree(options.scratch, ignore_errors=True)
    trainer = build(Trainer, options, equal(count, mib * MIB), seed=1, kinds="p", micro_ms=0)
    system = find(name)[1](trainer, options.scratch)
    parameters = list(trainer.parameters.values())
    manager = ck.StateManager(trainer.cell)
    manager.count_delivered(0)
    found: dict[str, Any] = {
        "asnumpy": [timed(lambda: [one.asnumpy() for one in parameters]) for _ in range(REPEATS)],
        "capture": [timed(trainer.capture) for _ in range(REPEATS)],
        "state_manager": [timed(manager.capture) for _ in range(REPEATS)],
        "memcpy": _memcpy_seconds(trainer),
        "saves": [],
    }
    with Watcher(system.complete) as watcher:
        for label in range(REPEATS + 1):
            trainer.end_cycle()
            watcher.began(label)
            stall, fence = timed(system.save, label), timed(system.fence)
            system.wait()
            found["saves"].append({"save": stall, "fence": fence, "complete": watcher.took(label)})
            if label:
                files.remove(system.path(label - 1))
    shutil.rmtree(options.scratch)
    return {**found, "saves": found["saves"][1:], "first": found["saves"][0]}


def _memcpy_seconds(trainer: Trainer) -> float:
    """The bytes of the whole state in one piece, into touched memory."""
    size = sum(one.size for one in trainer.arrays())
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    return min(timed(np.copyto, target, source) for _ in range(REPEATS))


def measure_loop(options: Options, name: str) -> dict[str, Any]:
    """A loop with a save after each cycle, of the options' size and K."""
    shutil.rmtree(options.scratch, ignore_errors=True)
    trainer = build(Trainer, options, like_a_model(options.mib), seed=1)
    system = find(name)[1](trainer, options.scratch)
    with Watcher(system.complete) as watcher:
        plan = Plan(cycles=1, settle=True)
        run_loop(trainer, system, watcher, plan, range(2), saves=2)  # the first saves allocate
        loop = run_loop(trainer, system, watcher, plan, range(2, 2 + options.saves), saves=options.saves)
    shutil.rmtree(options.scratch)
    return {**loop, "memcpy": _memcpy_seconds(trainer)}


def run(options: Options) -> Iterator[dict[str, Any]]:
    """All three parts; gives what is known after each point."""
    names = [one for one in options.systems if one == "copy" or one.startswith("ckptkit")]
    few = slice(0, 3) if options.quick else slice(None)
    mib = 16 if options.quick else TENSORS_MIB
    found: dict[str, Any] = {"tensors": [], "sizes": [], "steps": []}
    found |= {"tensors_mib": mib, "mib": options.mib, "micro_ms": options.micro_ms, "k": options.micro_steps}
    points = [("tensors", count, options) for count in TENSORS[few]]
    points += [("sizes", size, replace(options, mib=size)) for size in SIZES_MIB[few]]
    points += [("steps", steps, replace(options, micro_steps=steps)) for steps in STEPS[few]]
    for part, at, chosen in points:
        for name in names:
            print(f"growth: {name}, {part}: {at:,}", flush=True)
            found[part].append({"system": name, "at": at, **_point(part, chosen, name, at, mib)})
            yield found


def _point(part: str, options: Options, name: str, at: int, mib: int) -> dict[str, Any]:
    try:
        if part == "tensors":
            return measure("growth:measure_tensors", options, name=name, count=at, mib=mib)
        return measure("growth:measure_loop", options, name=name)
    except MeasurementError as error:  # the other points are measured all the same
        return {"error": str(error)}


def tables(found: dict[str, Any]) -> str:
    """For people."""
    errors = [one["error"] for part in ("tensors", "sizes", "steps") for one in found[part] if "error" in one]
    return "\n\n".join(
        [
            f"{found['tensors_mib']} MiB in so many tensors, unchanged until the fence, which comes at once:",
            table(
                ["tensors", "system", *_TENSORS],
                [_tensors_row(one) for one in found["tensors"] if "error" not in one],
            ),
            f"By size of the state, K = {found['k']}, micro-steps of {found['micro_ms']:.0f} ms:",
            table(
                ["state MiB", *_LOOP], [_loop_row(4 * one["at"], one) for one in found["sizes"] if "error" not in one]
            ),
            f"By K, state of {4 * found['mib']} MiB:",
            table(["K", *_LOOP], [_loop_row(one["at"], one) for one in found["steps"] if "error" not in one]),
            *errors,
        ]
    )


def _tensors_row(one: dict[str, Any]) -> list[str]:
    each = 1e6 / one["at"]
    saves = one["saves"]
    return [
        f"{one['at']:,}",
        one["system"],
        *(cell([each * seconds for seconds in one[kind]], 1) for kind in ("asnumpy", "capture", "state_manager")),
        cell([1e3 * save["save"] for save in saves], 1),
        cell([1e3 * save["fence"] for save in saves], 1),
        f"{median(save['save'] for save in saves) / one['memcpy']:.2f}",
        cell([save["complete"] for save in saves]),
    ]


_TENSORS = (
    "asnumpy us each",
    "capture us each",
    "StateManager.capture us each",
    "save ms",
    "fence at once ms",
    "save / memcpy",
    "complete s",
)
# What a system says of its own saves, in the last columns: header, name in its reports, unit.
_SAID = (
    ("copied by save, MiB", "copied_bytes", MIB),
    ("by fences, MiB", "fenced_bytes", MIB),
    ("read in place, MiB", "in_place_bytes", MIB),
    ("fence waited ms", "fence_wait_seconds", 1e-3),
)
_LOOP = ("system", "save ms", "fence ms", "stall / memcpy", "complete s", *(header for header, _, _ in _SAID))


def _loop_row(at: int, one: dict[str, Any]) -> list[str]:
    stalls = one["stalls"]
    return [
        f"{at:,}",
        one["system"],
        cell([1e3 * parts["save"] for parts in stalls], 1),
        cell([1e3 * (parts["fence"] + parts["step"]) for parts in stalls], 1),
        cell([stall_of(parts) / one["memcpy"] for parts in stalls]),
        cell(one["complete"]),
        *(cell([report[key] / unit for report in one["reports"]], 0) for _, key, unit in _SAID),
    ]
