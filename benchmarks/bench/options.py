"""What a run of the benchmarks is told; plain values, sent to every process that measures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20


@dataclass(frozen=True)
class Options:
    """One run.

    Attributes:
        workdir: On the disk to measure. Checkpoints below it are removed again, ``results`` stays.
        mib: Parameters of the synthetic training in MiB; its state is four times that.
        micro_ms: Length of a micro-step.
        micro_steps: K.
        saves: Per loop.
        cycles: Of the synthetic training, between two saves; 1 saves after every update.
        pairs: Loops with saves, each beside one without, in one process.
        rounds: Processes per system; every second round goes backwards.
        restores: Processes that restore, per system.
        systems: Names in `benchmarks.bench.systems.MODULES`.
        layouts: Of the synthetic training, names in `benchmarks.bench.stall.LAYOUTS`.
        modes: For MindSpore's own training.
        pythons: Interpreters by environment; what has none is measured by this one if it is ``mindspore``.
        quick: Fewer points where a benchmark has many.
    """

    workdir: Path
    mib: int = 192
    micro_ms: float = 60.0
    micro_steps: int = 8
    saves: int = 5
    cycles: int = 2
    pairs: int = 3
    rounds: int = 1
    restores: int = 3
    systems: tuple[str, ...] = ("none", "mindspore-ckpt", "mindspore-safetensors", "copy", "ckptkit")
    layouts: tuple[str, ...] = ("boundary", "few", "mid_cycle")
    modes: tuple[str, ...] = ("graph", "pynative")
    pythons: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False

    @property
    def state_bytes(self) -> int:
        """Of the synthetic training: parameters, two moments, accumulators."""
        return 4 * self.mib * MIB

    @property
    def scratch(self) -> Path:
        """For checkpoints; removed by every process that measures."""
        return self.workdir / "checkpoints"

    def dumps(self) -> str:
        """As text for another process."""
        return json.dumps({**asdict(self), "workdir": str(self.workdir)})

    @classmethod
    def loads(cls, text: str) -> Options:
        """The inverse of `dumps`."""
        fields: dict[str, Any] = json.loads(text)
        for name in ("systems", "layouts", "modes"):
            fields[name] = tuple(fields[name])
        return cls(**{**fields, "workdir": Path(fields["workdir"])})
