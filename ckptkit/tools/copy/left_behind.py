"""Uploads, for the program that ran a training, what that had committed at its root and not uploaded to its mirrors.

Guarantees: nothing is said or done if the mirrors have it. A failure is told, with the command that tries it again, and
raises nothing. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckptkit.errors import CkptKitError
from ckptkit.storage import Storage
from ckptkit.tools.copy.flush import flush, lacking


class LeftBehind:
    """Remembers the root and the mirrors of the last training.

    Args:
        open_root: Opens a root.
        say: Shows a line to the user.
    """

    def __init__(self, open_root: Callable[[str], Storage], say: Callable[[str], None]) -> None:
        self._open_root = open_root
        self._say = say
        self._root = ""
        self._mirrors: Sequence[str] = ()

    def note(self, root: str, mirrors: Sequence[str]) -> None:
        """Note where a training stores its checkpoints."""
        self._root, self._mirrors = root, mirrors

    def upload(self) -> None:
        """Upload the newest checkpoint to each mirror that lacks it."""
        if not self._mirrors:
            return
        try:
            root = self._open_root(self._root)
            if root.is_remote:
                return  # what lies there needs no machine that is there, and the next start uploads it
            late = lacking(root, [self._open_root(one) for one in self._mirrors])
            if not late:
                return
            self._say(f"uploading what {', '.join(one.url for one in late)} did not get from the training")
            for one in flush(root, late):
                said = "could not be uploaded to" if one.outcome in {"failed", "void"} else "is uploaded to"
                self._say(f"{one.checkpoint} {said} {one.mirror}{f': {one.why}' if one.why else ''}")
        except (CkptKitError, OSError, ValueError, TypeError) as error:
            self._say(
                f"could not upload: {error}. To try it again: ckptkit flush {self._root} {' '.join(self._mirrors)}"
            )
