"""One training loop with saves in it, and what each of them cost."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .files import remove
from .systems.system import System
from .systems.workload import Workload, timed
from .watcher import Watcher


@dataclass(frozen=True)
class Plan:
    """When a loop saves.

    Attributes:
        cycles: Between two saves; so many follow the last one, too, so that it has something to overlap with.
        micro_step: Of the cycle at which to save; 0 is the boundary.
        settle: Whether a save begins only when the one before is complete, waiting outside of all timings.
    """

    cycles: int = 2
    micro_step: int = 0
    settle: bool = False

    def due(self, micro_steps: int, k: int) -> bool:
        """Whether to save after so many micro-steps of a loop."""
        period = self.cycles * k
        return micro_steps >= period and micro_steps % period == self.micro_step


def run_loop(
    trainer: Workload, system: System, watcher: Watcher, plan: Plan, labels: Sequence[int], *, saves: int
) -> dict[str, Any]:
    """Train ``saves + 1`` intervals; save at the end of each but the last, if there are ``labels``.

    Two checkpoints are kept; an older one is deleted right before the next save, outside of all timings. That also
    recycles page cache: first use of memory that a virtual machine had given back costs seconds per GB.

    Returns:
        ``wall`` seconds without the deletions; ``stalls`` by their parts; ``complete``: seconds from each save's
        beginning; ``peak``: bytes of this process and of the machine; ``flush``: seconds that the kernel needed to
        write what the system had left to it; ``reports``: the system's own.
    """
    gc.collect()
    os.sync()
    system.reports()
    watcher.forget_peak()
    stalls: list[dict[str, float]] = []
    paused = 0.0
    began = time.perf_counter()
    for done in range(1, (saves + 1) * plan.cycles * trainer.micro_steps + 1):
        trainer.micro()
        parts = stalls[-1] if stalls else {"fence": 0.0, "step": 0.0}
        if trainer.update_due:
            parts["fence"] += timed(system.fence)
            trainer.update()
        parts["step"] += timed(system.stepped)
        if len(stalls) < len(labels) and plan.due(done, trainer.micro_steps):
            paused += timed(_make_room, system, labels[: len(stalls)], plan)
            watcher.began(labels[len(stalls)])
            stalls.append({"save": timed(system.save, labels[len(stalls)]), "fence": 0.0, "step": 0.0})
    system.wait()
    wall = time.perf_counter() - began - paused
    peak = watcher.peak_bytes()
    complete = [watcher.took(label) for label in labels]
    flush = timed(os.sync)
    for label in labels[-2:]:
        remove(system.path(label))
    return {
        "wall": wall,
        "stalls": stalls,
        "complete": complete,
        "peak": peak,
        "flush": flush,
        "reports": system.reports(),
    }


def _make_room(system: System, saved: Sequence[int], plan: Plan) -> None:
    if plan.settle:
        system.wait()
    if len(saved) >= 2:
        remove(system.path(saved[-2]))


def stall_of(parts: dict[str, float]) -> float:
    """What one save cost the training thread in all."""
    return sum(parts.values())
