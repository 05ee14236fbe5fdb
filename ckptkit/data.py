"""Provides training data that resumes exactly: random numbers per sample, orders that carry the epoch, custom loops.

Needs MindSpore; the facade loads it at its first use.
"""

from ckptkit.mindspore.data.resumable import resumable
from ckptkit.mindspore.data.sampling import Augmented, EpochSampler, GlobalIndices, GlobalSampler, sample_rng

__all__ = ["Augmented", "EpochSampler", "GlobalIndices", "GlobalSampler", "resumable", "sample_rng"]
