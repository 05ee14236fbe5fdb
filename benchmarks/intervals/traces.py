"""Failure traces: minutes between failures at Los Alamos (``SOURCE.md``), and draws from published means."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Trace:
    """Times between the failures of a job."""

    name: str
    gaps: tuple[float, ...]  # seconds

    @property
    def mean(self) -> float:
        return sum(self.gaps) / len(self.gaps)

    def at_mean(self, seconds: float) -> Trace:
        """The same failures on a clock on which the mean time between them is ``seconds``."""
        factor = seconds / self.mean
        return Trace(f"{self.name}, faster", tuple(factor * gap for gap in self.gaps))

    def first(self, failures: int) -> Trace:
        return Trace(f"{self.name}, the first {failures}", self.gaps[:failures])


def lanl() -> list[Trace]:
    """The systems in ``lanl.txt``; a job uses a whole one."""
    found: dict[str, list[float]] = {}
    for line in Path(__file__).with_name("lanl.txt").read_text().splitlines():
        system = re.match(r"system (\d+): (\d+) nodes", line)
        if system:
            gaps = found.setdefault(f"LANL {system[1]} ({system[2]} nodes)", [])
        else:
            gaps += [60.0 * int(minutes) for minutes in line.split()]
    return [Trace(name, tuple(gaps)) for name, gaps in found.items()]


def llama3(seed: int = 1) -> Trace:
    """Drawn: the Llama 3 report tells 419 unexpected interruptions in 54 days of 16,384 GPUs, and not when."""
    drawn = random.Random(seed)
    return Trace("Llama 3 (16,384 GPUs, drawn)", tuple(drawn.expovariate(419 / (54 * 86_400)) for _ in range(419)))
