"""Defines every error that ckptkit raises on purpose, grouped by what the handler does next.

::

    CkptKitError
    |- CheckpointNotFoundError (FileNotFoundError)   start fresh, or name another checkpoint
    |- UnusableCheckpointError (ValueError)
    |  |- CorruptCheckpointError                     go back one
    |  `- FormatVersionError                         upgrade ckptkit
    |- StateMismatchError      (ValueError)          fix the model or K
    |- ResumeError             (RuntimeError)        the run cannot be resumed exactly as asked
    |- StorageError            (OSError)             retry
    |- StaleAttemptError       (RuntimeError)        another process took this run over
    `- SaveFailedError         (RuntimeError)        saves failed in the background beyond the budget
    Preempted (SystemExit, code 143)                 the process is to end now; not an error, and not in the tree

Each error also derives from the builtin that a caller may already catch. A message says what happened, to which file or
leaf, and what to do next. It holds no secret: every text passes `ckptkit.scrubber.scrub`. It is valid Unicode, so that
a document or a message between ranks can hold it; a path need not be. Usable from any module and thread.
"""

from __future__ import annotations

from ckptkit.scrubber import scrub


class CkptKitError(Exception):
    """Is the base of every error that ckptkit raises on purpose; its text holds no secret of a storage."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(_plain(arg) if isinstance(arg, str) else arg for arg in args))


def _plain(text: str) -> str:
    return scrub(text).encode(errors="backslashreplace").decode()


class CheckpointNotFoundError(CkptKitError, FileNotFoundError):
    """Raised if the named checkpoint does not exist (any more) below this run root."""


class UnusableCheckpointError(CkptKitError, ValueError):
    """Is the base of the errors that say why stored files cannot be used; each names the file."""


class CorruptCheckpointError(UnusableCheckpointError):
    """Raised if a committed file is missing, truncated, altered or violates the format; the message names it."""


class FormatVersionError(UnusableCheckpointError):
    """Raised if a document has a newer format version than this ckptkit reads; names both versions."""


class StateMismatchError(CkptKitError, ValueError):
    """Raised if checkpoint and model disagree; the message lists the first leaves that differ. Nothing was changed."""


class ResumeError(CkptKitError, RuntimeError):
    """Raised if the run cannot be resumed exactly as asked; the message says what to change. Nothing was trained."""


class StorageError(CkptKitError, OSError):
    """Raised if the storage failed; the backend's own error is the ``__cause__``. Trying again may help."""


class StaleAttemptError(CkptKitError, RuntimeError):
    """Raised if a later start took over this run; this process must stop writing. The message names the other."""


class SaveFailedError(CkptKitError, RuntimeError):
    """Raised if too many background saves in a row failed, or the final one did."""


class Preempted(SystemExit):
    """Ends the process with code 143, as after SIGTERM: training was asked to end and its final save is settled.

    A `SystemExit`, so that a script ends here without a traceback and does not go on to export a "final" model.

    Args:
        message: What was saved, and how to continue.
        checkpoint: Name of the checkpoint of the last micro-step.

    Attributes:
        checkpoint: That name; None if the final save failed or was not in time, so that an earlier one is the newest.
    """

    def __init__(self, message: str, checkpoint: str | None = None) -> None:
        super().__init__(143)
        self.checkpoint = checkpoint
        self._message = message

    def __str__(self) -> str:
        return self._message
