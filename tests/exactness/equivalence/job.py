"""What one training process of the suite is told to do; plain values, imported by both sides."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

BATCHES_PER_EPOCH = 7  # 3, 4 and 5 do not divide it, so cycles run across the ends of epochs
SAMPLES_PER_BATCH = 4
EPOCHS = 3
MICRO_STEPS = EPOCHS * BATCHES_PER_EPOCH
TAMPERED_MOMENT = "moments.backbone.out.weight"
TAMPERED_ACCUMULATOR = "accum.backbone.out.weight"

Moment = Literal[
    "train_begin",  # everything restored, nothing trained
    "step_end",  # after the micro-step, before its save
    "step_saved",  # after the micro-step, its save begun but not waited for
    "in_update",  # inside the K-th call, gradients added, update not begun
    "after_update",  # inside the K-th call, update done, nothing counted yet
    "in_eval",  # between two batches of the epoch's evaluation
    "epoch_end",  # after the epoch, before its save
    "epoch_saved",  # after the epoch, its save begun but not waited for
    "in_write",  # in the writer thread, half of the weights written
    "committed",  # in the writer thread, right after COMMIT
]
Tampering = Literal["moment", "accumulator", "numpy", "python", "batch", "counter"]

_ORDINARY = ("carry", "micro_batches", "no", "exact", "auto", "callback")


@dataclass(frozen=True)
class Kill:
    """SIGKILL at ``moment`` of the micro-step ``at``, counted from 1 since the run's first start."""

    moment: Moment
    at: int


@dataclass(frozen=True)
class Case:
    """What of a training stays the same from start to start; options of ckptkit have their names."""

    mode: Literal["graph", "pynative"]
    accumulation_steps: int
    optimizer: Literal["Momentum", "Adam", "AdamWeightDecay", "RMSProp"]
    network: Literal["dense", "conv"]
    api: Literal["train", "fit"]
    save: Literal["micro_steps", "optimizer_steps"] = "micro_steps"
    traced: Literal["before_save", "after_save"] = "before_save"
    seed: int | None = 7
    remainder: Literal["carry", "flush", "drop"] = "carry"
    normalize: Literal["micro_batches", "samples"] = "micro_batches"
    scaled: Literal["no", "scaler", "cell"] = "no"
    mid_cycle: Literal["exact", "align", "rewind"] = "exact"
    window: Literal["auto", "slice"] = "auto"
    started_by: Literal["callback", "script", "resume"] = "callback"  # "resume": by the script, ckpt first in the list

    def __str__(self) -> str:
        chosen = (self.remainder, self.normalize, self.scaled, self.mid_cycle, self.window, self.started_by)
        special = [value for value in chosen if value not in _ORDINARY]
        return "-".join([self.mode, f"K{self.accumulation_steps}", self.optimizer, self.network, self.api, *special])

    def place(self, at: int) -> tuple[int, int]:
        """Cycles ended and micro-step in the running one after ``at`` micro-steps, the end of the epoch included."""
        if self.remainder == "carry":
            return divmod(at, self.accumulation_steps)
        epochs, batch = divmod(at, BATCHES_PER_EPOCH)
        cycles, micro_step = divmod(batch, self.accumulation_steps)
        return epochs * -(-BATCHES_PER_EPOCH // self.accumulation_steps) + cycles, micro_step


@dataclass(frozen=True)
class Job:
    """One process; without a ``root`` it trains without ckptkit's callback, without a ``kill`` to the end."""

    case: Case
    root: str | None
    trace: str
    kill: Kill | None = None
    tampering: Tampering | None = None

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Job:
        fields = json.loads(text)
        kill = fields.pop("kill")
        return cls(case=Case(**fields.pop("case")), kill=kill and Kill(**kill), **fields)
