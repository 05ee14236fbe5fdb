"""Every error that ckptkit raises on purpose, grouped by what the handler does next.

::

    CkptKitError
    |- CheckpointNotFoundError (FileNotFoundError)   start fresh, or name another checkpoint
    |- CorruptCheckpointError  (ValueError)          go back one
    |- FormatVersionError      (ValueError)          upgrade ckptkit
    |- StateMismatchError      (ValueError)          fix the model or K
    |- ResumeError             (RuntimeError)        the run cannot be resumed exactly as asked
    |- StorageError            (OSError)             retry
    |- StaleAttemptError       (RuntimeError)        another process took this run over
    `- SaveFailedError         (RuntimeError)        saves failed in the background beyond the budget
    Preempted (SystemExit, code 143)                 the process is to end now; no error, and none of the tree

Each is also the builtin that a caller may already catch. A message says what happened, to which file or
leaf, and what to do next, and no secret: whatever text is given passes `ckptkit.scrubber.scrub`. May be used anywhere.
"""

from __future__ import annotations

from ckptkit.scrubber import scrub


class CkptKitError(Exception):
    """Base of every error that ckptkit raises on purpose; its words hold no secret that a storage was opened with."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(scrub(one) if isinstance(one, str) else one for one in args))


class CheckpointNotFoundError(CkptKitError, FileNotFoundError):
    """The named checkpoint does not exist (any more) below this run root."""


class CorruptCheckpointError(CkptKitError, ValueError):
    """A committed file is missing, truncated, altered or not what the format says; the message names it."""


class FormatVersionError(CkptKitError, ValueError):
    """A document was written by a newer format version than this ckptkit reads; names both versions."""


class StateMismatchError(CkptKitError, ValueError):
    """The checkpoint and the model disagree; the message lists the first leaves that differ. Nothing was changed."""


class ResumeError(CkptKitError, RuntimeError):
    """The run cannot be resumed exactly as asked; the message says what to change. Nothing was trained."""


class StorageError(CkptKitError, OSError):
    """The storage failed; the backend's own error is the ``__cause__``. Trying again may help."""


class StaleAttemptError(CkptKitError, RuntimeError):
    """A later start took this run over; this process must stop writing. The message names the other."""


class SaveFailedError(CkptKitError, RuntimeError):
    """Background saves failed more often in a row than the budget allows, or the last one did."""


class Preempted(SystemExit):
    """Training was asked to end and its last save is settled; with code 143, as after SIGTERM.

    A `SystemExit`, so that a script ends here without a traceback and does not go on to export a "final" model.

    Args:
        message: What was saved, and how to go on.
        checkpoint: Name of the checkpoint of the last micro-step.

    Attributes:
        checkpoint: That name; None if the last save failed or was not in time, so that an earlier one is the newest.
    """

    def __init__(self, message: str, checkpoint: str | None = None) -> None:
        super().__init__(143)
        self.checkpoint = checkpoint
        self._message = message

    def __str__(self) -> str:
        return self._message
