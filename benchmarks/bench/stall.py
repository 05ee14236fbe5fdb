"""What saving costs a training, what a restore takes, and whether it is exact; every system beside the others.

Guarantees of the figures: each process trains loops with saves beside loops without, in turn; a restore is measured in
fresh processes with a warm page cache; exact means that the state was changed at once after the save, that a fresh
process restored, trained on alike, and that the digests of every bit are equal then.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from . import files, limits
from .loop import Plan, run_loop, stall_of
from .measurement import MeasurementError, measure
from .options import MIB, Options
from .systems import environment_of, find
from .systems.workload import Shapes, Workload, build, equal, like_a_model, timed
from .table import cell, percent, table
from .watcher import Watcher

# Where it saves, and over which tensors; only the first is measured in all respects.
LAYOUTS = {
    "boundary": "at a boundary, 1,416 tensors",
    "few": "at a boundary, 100 tensors",
    "mid_cycle": "in mid-cycle, 1,416 tensors",
}


PEERS = ("none", "mindspore-safetensors", "copy", "ckptkit", "torch-safetensors", "dcp", "orbax")
LOOP = ("system", "stall ms", "stall / memcpy", "of it fence and step ms", "loop slowdown")
LOOP += ("complete in loop s", "left to flush s", "extra peak / state", "of the machine")
IDLE = ("system", "complete, idle s", "durable, idle s", "of write limit", "written MiB", "written at")
IDLE += ("restore s", "deferred s", "of warm read", "of plain read", "cold restore s", "of cold read")
IDLE += ("extra peak / state", "bit-exact")


def shapes_of(layout: str, options: Options) -> Shapes:
    """Of the weights; the state has four tensors of each."""
    return equal(25, options.mib * MIB) if layout == "few" else like_a_model(options.mib)


def measure_system(options: Options, name: str, layout: str, damage: bool = False) -> dict[str, Any]:
    """Everything about one system; with ``damage``, also what a restore says after a bit of the files was flipped."""
    shutil.rmtree(options.scratch, ignore_errors=True)
    workload, make = find(name)
    trainer = build(workload, options, shapes_of(layout, options), seed=1)
    system = make(trainer, options.scratch)
    plan = Plan(options.cycles, micro_step=options.micro_steps // 2 if layout == "mid_cycle" else 0)
    pairs = options.pairs if layout == "boundary" else 1
    found: dict[str, Any] = {"system": name, "layout": layout, "without": [], "with": [], "reports": []}
    with Watcher(system.complete) as watcher:
        label = 0
        for pair in range(pairs):
            for kind in ("without", "with") if pair % 2 == 0 else ("with", "without"):
                labels = range(label, label + options.saves) if kind == "with" and name != "none" else ()
                found[kind].append(run_loop(trainer, system, watcher, plan, labels, saves=options.saves))
                label += len(labels)
        if name != "none":
            found["idle"] = _save_idle(trainer, system, watcher, plan, label)
    if name == "none":
        return found
    expected = trainer.digest()
    del trainer, system, watcher  # two states need not fit in memory
    gc.collect()
    how = {"name": name, "layout": layout, "label": label}
    for kind, cold in (("restores", False), ("cold_restores", True)):
        found[kind] = [_restored(options, expected, **how, cold=cold) for _ in range(options.restores)]
    if damage:
        files.flip_a_bit(options.scratch)
        found["damaged"] = _restored(options, expected, **how, cold=False)
    shutil.rmtree(options.scratch)
    return found


def _save_idle(trainer: Workload, system: Any, watcher: Watcher, plan: Plan, label: int) -> dict[str, float]:
    """One save beside nothing but an update, which comes at once."""
    for _ in range(plan.micro_step):
        trainer.micro()
    os.sync()
    watcher.began(label)
    stall = timed(system.save, label)
    fence = timed(system.fence)
    trainer.change()
    system.wait()
    complete = watcher.took(label)
    return {
        "stall": stall,
        "fence": fence,
        "complete": complete,
        "durable": complete + timed(files.fsync_all, system.path(label)),
        "disk_bytes": files.size_bytes(system.path(label)),
    }


def _restored(options: Options, expected: str, *, name: str, **how: Any) -> dict[str, Any]:
    try:
        found = measure("stall:restore_system", options, environment=environment_of(name), name=name, **how)
    except MeasurementError as error:
        return {"exact": False, "error": str(error)}
    return {**found, "exact": found["digest"] == expected}


def restore_system(options: Options, name: str, layout: str, label: int, cold: bool) -> dict[str, Any]:
    """Restore in this process, and train on."""
    workload, make = find(name)
    trainer = build(workload, options, shapes_of(layout, options), seed=None)
    normal = min(timed(trainer.change) for _ in range(3))
    system = make(trainer, options.scratch)
    if cold:
        files.drop(options.scratch)
    else:
        files.warm(options.scratch)
    with Watcher(system.complete) as watcher:
        before = watcher.used_bytes()
        watcher.forget_peak()
        seconds = timed(system.restore, label)
        peak = watcher.peak_bytes()
    # What was mapped and not read is paid for at its first use.
    first_step = timed(trainer.change)
    digest = trainer.digest()
    return {
        "plain": None if cold else _plain_read(trainer, files.size_bytes(options.scratch), options.scratch),
        "seconds": seconds,
        "deferred": max(0.0, first_step - normal),
        "extra_peak": [one - other for one, other in zip(peak, before, strict=True)],
        "digest": digest,
    }


def _plain_read(trainer: Workload, size_bytes: int, folder: Path) -> float | None:
    """Seconds that one thread takes to read as many bytes into the same memory; None if that cannot be written to."""
    into = []
    for one in trainer.arrays():
        if size_bytes < one.size or not one.flags.writeable:
            break
        into.append(one)
        size_bytes -= one.size
    if not into:
        return None
    path = folder / "plain.bin"
    with open(path, "wb", buffering=0) as file:
        for one in into:
            file.write(one.data)
    took = []
    for _ in range(3):
        with open(path, "rb", buffering=0) as file:
            took.append(timed(lambda: [file.readinto(one.data) for one in into]))
    path.unlink()
    return median(took)


def run(options: Options) -> Iterator[dict[str, Any]]:
    """Every system, one process each, and the limits before and after; gives what is known after each."""
    limits_before = measure("limits:limits", options)
    found: dict[str, Any] = {"limits": [limits_before], "systems": [], "state_bytes": options.state_bytes}
    for number in range(options.rounds):
        for layout, text in ((one, LAYOUTS[one]) for one in options.layouts):
            for name in options.systems[:: -1 if number % 2 else 1]:
                print(f"stall: {name}, {text}", flush=True)
                where = environment_of(name)
                found["systems"].append(
                    measure("stall:measure_system", options, environment=where, name=name, layout=layout)
                )
                yield found
    found["limits"].append(measure("limits:limits", options))
    yield found


def tables(found: dict[str, Any]) -> str:
    """For people."""
    machine = limits.merged(found["limits"])
    size = found["state_bytes"]
    memcpy = size / median(machine["memcpy"]) / 1e6
    parts = [f"State {size // MIB} MiB. {limits.line(machine)}."]
    for layout, text in LAYOUTS.items():
        of_layout = [one for one in found["systems"] if one["layout"] == layout]
        if not of_layout:
            continue
        by_name = {name: [one for one in of_layout if one["system"] == name] for name in _names(of_layout)}
        parts.append(f"Saves {text}:\n\n{table(LOOP, [_loop_row(*one, memcpy, size) for one in by_name.items()])}")
        saved = {name: several for name, several in by_name.items() if name != "none"}
        parts.append(table(IDLE, [_idle_row(*one, machine, size) for one in saved.items()]))
    return "\n\n".join(parts)


def table_of_peers(measured: dict[str, Any]) -> str:
    """The columns of ``docs/performance.md``, after those of `tables`."""
    machine = limits.merged(measured["limits"])
    size = measured["state_bytes"]
    memcpy = size / median(machine["memcpy"]) / 1e6
    of_loop = ("system", "stall / memcpy", "loop slowdown", "extra peak / state")
    of_idle = ("of write limit", "of plain read", "of cold read", "bit-exact")
    rows = []
    for name in (name for name in _names(measured["systems"]) if name != "none"):
        of_system = [result for result in measured["systems"] if result["system"] == name]
        loop = dict(zip(LOOP, _loop_row(name, of_system, memcpy, size), strict=True))
        idle = dict(zip(IDLE, _idle_row(name, of_system, machine, size), strict=True))
        rows.append([*(loop[column] for column in of_loop), *(idle[column] for column in of_idle)])
    return f"{tables(measured)}\n\n{table([*of_loop, *of_idle], rows)}"


def _names(measured: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(one["system"] for one in measured))


def _loop_row(name: str, several: list[dict[str, Any]], memcpy: float, size: int) -> list[str]:
    loops = [loop for one in several for loop in one["with"]]
    stalls = [parts for loop in loops for parts in loop["stalls"]]
    pairs = [pair for one in several for pair in zip(one["without"], one["with"], strict=True)]
    peaks = [
        [(loop["peak"][which] - one["without"][0]["peak"][which]) / size for one in several for loop in one["with"]]
        for which in (0, 1)
    ]
    return [
        name,
        cell([1e3 * stall_of(parts) for parts in stalls], 1),
        cell([stall_of(parts) / memcpy for parts in stalls]),
        cell([1e3 * (parts["fence"] + parts["step"]) for parts in stalls], 1),
        cell([loop["wall"] / without["wall"] for without, loop in pairs], 3),
        cell([seconds for loop in loops for seconds in loop["complete"]]),
        cell([loop["flush"] for loop in loops]),
        *map(cell, peaks),
    ]


def _idle_row(name: str, several: list[dict[str, Any]], machine: dict[str, list[float]], size: int) -> list[str]:
    idle = [one["idle"] for one in several]
    restores = [restore for one in several for restore in one["restores"]]
    colds = [restore for one in several for restore in one.get("cold_restores", [])]
    timed_ones = [one for one in restores if "seconds" in one]
    timed_colds = [one for one in colds if "seconds" in one]
    write, read = limits.write_limit(machine) * 1e6, median(machine["read_warm"]) * 1e6
    cold = limits.cold_limit(machine) * 1e6
    return [
        name,
        cell([one["complete"] for one in idle]),
        cell([one["durable"] for one in idle]),
        percent([size / one["durable"] / write for one in idle]),
        cell([one["disk_bytes"] / MIB for one in idle], 0),
        percent([one["disk_bytes"] / one["durable"] / write for one in idle]),
        cell([one["seconds"] for one in timed_ones]),
        cell([one["deferred"] for one in timed_ones]),
        percent([size / (one["seconds"] + one["deferred"]) / read for one in timed_ones]),
        percent([one["plain"] / (one["seconds"] + one["deferred"]) for one in timed_ones if one["plain"]]),
        cell([one["seconds"] + one["deferred"] for one in timed_colds]),
        percent([idle[0]["disk_bytes"] / (one["seconds"] + one["deferred"]) / cold for one in timed_colds]),
        cell([one["extra_peak"][0] / size for one in timed_ones]),
        "yes" if all(one["exact"] for one in restores + colds) else "NO",
    ]
