"""The first half of a save: `capture` takes references, `stage` copies what may change, `window` keeps the rest."""

from ckptkit.snapshot.capture import Capturable
from ckptkit.snapshot.staging import Handling, StagingArea
from ckptkit.snapshot.window import Window

__all__ = ["Capturable", "Handling", "StagingArea", "Window"]
