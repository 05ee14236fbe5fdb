"""The seam between the manager, which knows files, and whatever holds a training state, which knows a framework.

Guarantees nothing by itself. The thread rules are those of the implementation; the manager calls it from the
training thread only.
"""

from __future__ import annotations

from typing import Protocol

from ckptkit.contents import Capture, Contents
from ckptkit.progress import Progress


class Capturable(Protocol):
    """Holds a training state that can be saved and restored.

    The seam is three methods because a manager needs no more to be exact: where the run is, all of it, and all of
    it back.
    """

    def progress(self) -> Progress:
        """Where the run stands now; cheap, called after every micro-step."""
        ...

    def capture(self) -> Capture:
        """References to the state as it is now, after waiting for every operation under way.

        Must advance no random generator.
        """
        ...

    def apply(self, contents: Contents) -> None:
        """Take over the state in ``contents``; may be called again with another.

        Raises:
            StateMismatchError: If the two do not fit; raised before anything was changed.
            ResumeError: If the run could not continue exactly; raised before anything was changed.
        """
        ...
