"""Provides training data that resumes exactly: random numbers per sample, orders that carry the epoch, custom loops.

Importing this module imports nothing else. Each name is loaded at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptkit.mindspore.data.resumable import resumable
    from ckptkit.mindspore.data.sampling import Augmented, EpochSampler, GlobalIndices, GlobalSampler, sample_rng

_HOME = {
    "Augmented": "ckptkit.mindspore.data.sampling",
    "EpochSampler": "ckptkit.mindspore.data.sampling",
    "GlobalIndices": "ckptkit.mindspore.data.sampling",
    "GlobalSampler": "ckptkit.mindspore.data.sampling",
    "resumable": "ckptkit.mindspore.data.resumable",
    "sample_rng": "ckptkit.mindspore.data.sampling",
}

__all__ = ["Augmented", "EpochSampler", "GlobalIndices", "GlobalSampler", "resumable", "sample_rng"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'ckptkit.data' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
