"""Provides training data that resumes exactly: random numbers per sample, orders that carry the epoch, custom loops.

Importing this module imports nothing else. Each name is loaded at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptkit.mindspore.data.global_order import GlobalIndices, GlobalSampler
    from ckptkit.mindspore.data.resumable import resumable
    from ckptkit.mindspore.data.sample import sample_rng
    from ckptkit.mindspore.data.sampler import Augmented, EpochSampler

_HOME = {
    "Augmented": "ckptkit.mindspore.data.sampler",
    "EpochSampler": "ckptkit.mindspore.data.sampler",
    "GlobalIndices": "ckptkit.mindspore.data.global_order",
    "GlobalSampler": "ckptkit.mindspore.data.global_order",
    "resumable": "ckptkit.mindspore.data.resumable",
    "sample_rng": "ckptkit.mindspore.data.sample",
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
