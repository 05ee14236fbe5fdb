"""Defines the interface between the manager, which knows files, and training state, which depends on a framework.

The module itself guarantees nothing. The implementation sets the thread rules; the manager calls it from the training
thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ckptkit.core.contents import Capture, Contents
from ckptkit.core.process_group import World
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import Leaf
from ckptkit.errors import ResumeError


class IncompleteStepError(ResumeError):
    """Raised by a capture if nothing shows that all that belongs to the last micro-step is done."""


class Capturable(Protocol):
    """Holds a training state that can be saved and restored.

    The interface is small because a manager needs only this to be exact: the progress, the whole state, restoring it,
    and the notice that there is nothing to restore. The two methods about the start of a cycle are called only with
    ``Saving(mid_cycle="rewind")``.
    """

    @property
    def world(self) -> World:
        """The ranks that train this state together; `ckptkit.core.process_group.ALONE` for a single one."""

    def progress(self) -> Progress:
        """Return the current progress of the run; cheap, called after every micro-step."""

    def is_over(self) -> bool:
        """Whether nothing is left to train, as far as the state knows; asked after `apply`.

        Then a start takes the run over only from a process that is known to have ended.
        """

    def complete_step(self) -> Progress:
        """Return the same as `progress`, and note that the micro-step that it counts last is complete.

        `CheckpointManager.step` calls it. A save without it may come from the handler of an error in that micro-step.
        """

    def capture(self) -> Capture:
        """Return references to the current state, after waiting for every operation under way.

        Must not advance any random generator.

        Raises:
            IncompleteStepError: If nothing shows that all that belongs to the last micro-step is done.
        """

    def leaves(self, *, at_boundary: bool) -> Sequence[Leaf]:
        """Return references to the tensors that `capture` holds at a boundary, or else between two."""

    def guard(self, fence: Callable[[], None]) -> None:
        """Call ``fence`` once, before anything changes a leaf of lifetime ``cycle`` again; further calls are harmless.

        Until then, the last capture's leaves of this lifetime are read in place. An implementation that cannot tell
        when they change gives all leaves the lifetime ``micro``; then this method is never called.
        """

    def mark_cycle_start(self) -> Progress:
        """Between two cycles, keep what `capture_cycle_start` needs in the next one; return the progress there.

        Raises:
            ResumeError: If a cycle of this training cannot begin again.
        """

    def capture_cycle_start(self) -> Capture:
        """Do the same as `capture`, for the state in which the running cycle began."""

    def begin(self, root: str) -> None:
        """Take the state as it is for a fresh start at ``root``; called instead of `apply`, maybe more than once.

        Raises:
            ResumeError: If the state is not fresh, for example because training has already gone on.
        """

    def apply(self, contents: Contents) -> None:
        """Take over the state in ``contents``; may be called again with other contents.

        Raises:
            StateMismatchError: If the two do not fit; raised before anything was changed.
            ResumeError: If the run could not continue exactly; raised before anything was changed.
            CorruptCheckpointError: If the contents are inconsistent, raised before anything was changed; or if reading
                them found altered bytes. The manager then tries an older checkpoint. A state that is read straight into
                its own memory (`Contents.read_into`) is then half overwritten; it must refuse to go on and to be saved
                until another `apply` has succeeded.
            CheckpointNotFoundError, StorageError: If reading failed; the same holds.
        """
