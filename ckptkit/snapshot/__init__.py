"""Takes the first half of a save: `staging` copies, `window` fences the rest.

`capture` says what can be saved, `partition` what of it each rank writes. The second half, from staged memory to
COMMIT, is `ckptkit.checkpoint`.
"""

from ckptkit.snapshot.capture import Capturable, IncompleteStepError
from ckptkit.snapshot.staging import Handling, StagingArea
from ckptkit.snapshot.window import Window

__all__ = ["Capturable", "Handling", "IncompleteStepError", "StagingArea", "Window"]
