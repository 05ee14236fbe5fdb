"""The seam between the manager, which knows files, and whatever holds a training state, which knows a framework.

Guarantees nothing by itself. The thread rules are those of the implementation; the manager calls it from the
training thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ckptkit.core.contents import Capture, Contents
from ckptkit.core.process_group import World
from ckptkit.core.progress import Progress


class Capturable(Protocol):
    """Holds a training state that can be saved and restored.

    The seam is this small because a manager needs no more to be exact: where the run is, all of it, all of it
    back, and the word that there is nothing to bring back. The two methods about the start of a cycle are called
    with ``mid_cycle="rewind"`` only.
    """

    @property
    def world(self) -> World:
        """The ranks that train it together; `ckptkit.core.process_group.ALONE` where there is one."""
        ...

    def progress(self) -> Progress:
        """Where the run stands now; cheap, called after every micro-step."""
        ...

    def capture(self) -> Capture:
        """References to the state as it is now, after waiting for every operation under way.

        Must advance no random generator.
        """
        ...

    def guard(self, fence: Callable[[], None]) -> None:
        """Call ``fence`` once, before anything changes a leaf of lifetime ``cycle`` again; later calls do no harm.

        Until then the leaves of the last capture that have this lifetime are read where they are. Whoever cannot tell
        when they change gives all leaves the lifetime ``micro``, and never gets here.
        """
        ...

    def mark_cycle_start(self) -> Progress:
        """Between two cycles, keep what `capture_cycle_start` needs in the next one; say where that is.

        Raises:
            ResumeError: If a cycle of this training cannot begin again.
        """
        ...

    def capture_cycle_start(self) -> Capture:
        """As `capture`, of the state in which the running cycle began."""
        ...

    def begin(self, root: str) -> None:
        """Take the state as it is for a fresh start at ``root``; called instead of `apply`, maybe more than once.

        Raises:
            ResumeError: If it is not a fresh one, such as a training that has gone on already.
        """
        ...

    def apply(self, contents: Contents) -> None:
        """Take over the state in ``contents``; may be called again with another.

        Raises:
            StateMismatchError: If the two do not fit; raised before anything was changed.
            ResumeError: If the run could not continue exactly; raised before anything was changed.
            CorruptCheckpointError: If the contents make no sense, which is raised before anything was changed; or if
                reading them found altered bytes. An older checkpoint is tried. One that reads straight into its own
                memory (`Contents.read_into`) is half overwritten then, and must refuse to go on and to be saved
                until another `apply` has succeeded.
            CheckpointNotFoundError, StorageError: From reading; the same holds.
        """
        ...
