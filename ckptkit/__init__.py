"""Interrupted MindSpore training continues as if nothing had happened, bit for bit.

Importing this package imports nothing else; each name is loaded when it is first used, so that the command
line and the storage half start without MindSpore.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptkit.errors import (
        CheckpointNotFoundError,
        CkptKitError,
        CorruptCheckpointError,
        FormatVersionError,
        ResumeError,
        SaveFailedError,
        StaleAttemptError,
        StateMismatchError,
        StorageError,
    )
    from ckptkit.manager import CheckpointManager, SaveHandle
    from ckptkit.mindspore.callback import CheckpointCallback
    from ckptkit.mindspore.state import StateManager
    from ckptkit.mindspore.train_cell import AccumulationTrainCell
    from ckptkit.policies import KeepBest, KeepEvery, KeepLatest, SaveEvery
    from ckptkit.progress import ResumePoint

__version__ = "0.1.0"

_HOME = {
    "AccumulationTrainCell": "ckptkit.mindspore.train_cell",
    "CheckpointCallback": "ckptkit.mindspore.callback",
    "CheckpointManager": "ckptkit.manager",
    "CheckpointNotFoundError": "ckptkit.errors",
    "CkptKitError": "ckptkit.errors",
    "CorruptCheckpointError": "ckptkit.errors",
    "FormatVersionError": "ckptkit.errors",
    "KeepBest": "ckptkit.policies",
    "KeepEvery": "ckptkit.policies",
    "KeepLatest": "ckptkit.policies",
    "ResumeError": "ckptkit.errors",
    "ResumePoint": "ckptkit.progress",
    "SaveEvery": "ckptkit.policies",
    "SaveFailedError": "ckptkit.errors",
    "SaveHandle": "ckptkit.manager",
    "StaleAttemptError": "ckptkit.errors",
    "StateManager": "ckptkit.mindspore.state",
    "StateMismatchError": "ckptkit.errors",
    "StorageError": "ckptkit.errors",
}

__all__ = [
    "AccumulationTrainCell",
    "CheckpointCallback",
    "CheckpointManager",
    "CheckpointNotFoundError",
    "CkptKitError",
    "CorruptCheckpointError",
    "FormatVersionError",
    "KeepBest",
    "KeepEvery",
    "KeepLatest",
    "ResumeError",
    "ResumePoint",
    "SaveEvery",
    "SaveFailedError",
    "SaveHandle",
    "StaleAttemptError",
    "StateManager",
    "StateMismatchError",
    "StorageError",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'ckptkit' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
