"""The first half of a save, on the training thread: `capture` takes references, `stage` copies what may change, and
`window` keeps the rest readable until the fence."""

from ckptkit.snapshot.capture import Capturable
from ckptkit.snapshot.stage import Handling, StagingArea
from ckptkit.snapshot.window import Window

__all__ = ["Capturable", "Handling", "StagingArea", "Window"]
