"""Continues interrupted MindSpore training as if nothing had happened, bit for bit.

Importing this package imports nothing else. Each name is loaded at its first use, so that the command line and the
storage half start without MindSpore.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptkit import data, nn
    from ckptkit.core.accumulation import AccumulationPlan, nearest_plans, plan_accumulation, scale_learning_rate
    from ckptkit.core.placement import Box
    from ckptkit.core.progress import ResumePoint
    from ckptkit.core.save_policy import SaveEvery
    from ckptkit.core.save_report import SaveReport
    from ckptkit.errors import (
        CheckpointNotFoundError,
        CkptKitError,
        CorruptCheckpointError,
        FormatVersionError,
        Preempted,
        ResumeError,
        SaveFailedError,
        StaleAttemptError,
        StateMismatchError,
        StorageError,
        UnusableCheckpointError,
    )
    from ckptkit.manager.manager import CheckpointManager
    from ckptkit.manager.options import Mirror, Preemption, Ranks, Saving, System
    from ckptkit.manager.writer import SaveHandle
    from ckptkit.mindspore.callback.callback import CheckpointCallback
    from ckptkit.mindspore.loop import Loop, loop
    from ckptkit.mindspore.state.manager import StateManager
    from ckptkit.mindspore.state.sources import Training
    from ckptkit.mindspore.state.stateful_objects import attributes
    from ckptkit.mindspore.train.cell import AccumulationTrainCell
    from ckptkit.mindspore.train.micro_steps import BoostCycle, CycleAdapter
    from ckptkit.run.keep_policy import KeepBest, KeepCertified, KeepEvery, KeepLatest

__version__ = "0.1.0"

_NAMES = {  # by module
    "ckptkit.core.accumulation": ("AccumulationPlan", "nearest_plans", "plan_accumulation", "scale_learning_rate"),
    "ckptkit.core.placement": ("Box",),
    "ckptkit.core.progress": ("ResumePoint",),
    "ckptkit.core.save_policy": ("SaveEvery",),
    "ckptkit.core.save_report": ("SaveReport",),
    "ckptkit.errors": (
        *("CheckpointNotFoundError", "CkptKitError", "CorruptCheckpointError", "FormatVersionError", "Preempted"),
        *("ResumeError", "SaveFailedError", "StaleAttemptError", "StateMismatchError", "StorageError"),
        "UnusableCheckpointError",
    ),
    "ckptkit.manager.manager": ("CheckpointManager",),
    "ckptkit.manager.options": ("Mirror", "Preemption", "Ranks", "Saving", "System"),
    "ckptkit.manager.writer": ("SaveHandle",),
    "ckptkit.mindspore.callback.callback": ("CheckpointCallback",),
    "ckptkit.mindspore.loop": ("Loop", "loop"),
    "ckptkit.mindspore.state.stateful_objects": ("attributes",),
    "ckptkit.mindspore.state.manager": ("StateManager",),
    "ckptkit.mindspore.state.sources": ("Training",),
    "ckptkit.mindspore.train.cell": ("AccumulationTrainCell",),
    "ckptkit.mindspore.train.micro_steps": ("BoostCycle", "CycleAdapter"),
    "ckptkit.run.keep_policy": ("KeepBest", "KeepCertified", "KeepEvery", "KeepLatest"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = ("data", "nn")

__all__ = [
    "AccumulationPlan", "AccumulationTrainCell", "BoostCycle", "Box", "CheckpointCallback", "CheckpointManager",
    "CheckpointNotFoundError", "CkptKitError", "CorruptCheckpointError", "CycleAdapter", "FormatVersionError",
    "KeepBest", "KeepCertified", "KeepEvery", "KeepLatest", "Loop", "Mirror", "Preempted", "Preemption", "Ranks",
    "ResumeError", "ResumePoint", "SaveEvery", "SaveFailedError", "SaveHandle", "SaveReport", "Saving",
    "StaleAttemptError", "StateManager", "StateMismatchError", "StorageError", "System", "Training",
    "UnusableCheckpointError", "attributes", "data", "loop", "nearest_plans", "nn", "plan_accumulation",
    "scale_learning_rate",
]  # fmt: skip


def _refuse_other_package() -> None:
    """Refuse a folder in which pip has also installed the other distribution that has a package of this name."""
    folder = os.path.dirname(os.path.dirname(__file__))
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    if any(name.startswith("ckptkit-") and name.endswith(".dist-info") for name in names):
        raise ImportError(
            f"two distributions have a package named ckptkit in {folder}: ckptkit, which is another tool, and "
            "mindspore-ckptkit. Each has overwritten files of the other. Keep one: "
            "pip uninstall -y ckptkit mindspore-ckptkit && pip install mindspore-ckptkit"
        )


_refuse_other_package()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"ckptkit.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'ckptkit' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
