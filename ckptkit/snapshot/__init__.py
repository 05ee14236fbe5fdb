"""The first half of a save, on the training thread: `capture` takes references, `stage` copies them."""

from ckptkit.snapshot.capture import Capturable
from ckptkit.snapshot.stage import StagingArea

__all__ = ["Capturable", "StagingArea"]
