"""Watches the saves that a script makes by itself, and gives it scratch mirrors in place of its own.

Guarantees: the script's own mirrors are never touched. A checkpoint counts once it is where the next life looks for it:
at a mirror if there is one, since that life has no root, and otherwise at the root. Training thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ckptkit.manager.options import Mirror
from ckptkit.run.catalog import list_checkpoints
from ckptkit.storage import Storage
from ckptkit.tools.doctor.lives.trace import scratch_run

_STEPS_AFTER_SAVE = 2


class OwnSaves:
    """Watches the saves at one run root.

    Attributes:
        urls: The URLs that the script gave of the mirrors in use.
    """

    def __init__(self) -> None:
        self.urls: tuple[str, ...] = ()
        self._mirrors: tuple[Mirror, ...] = ()
        self._since: int | None = None  # after which micro-step a save began that was not awaited

    def scratch(self, root: Path, given: Sequence[Mirror]) -> Sequence[Mirror]:
        """Return mirrors below ``root`` that replace those ``given``, and are as fast as can be."""
        self.urls = tuple(mirror.storage.url for mirror in given)
        places = zip(given, (scratch_run(root, url) for url in self.urls), strict=True)
        self._mirrors = tuple(replace(mirror, root=at, storage_options=None, bandwidth=None) for mirror, at in places)
        return self._mirrors

    def begin(self, step: int) -> None:
        """Note that a save begins after micro-step ``step``."""
        if self._since is None:
            self._since = step

    def is_due(self, step: int, last: int) -> bool:
        """Return whether to wait for a save now, after micro-step ``step`` of a life that ends after ``last``.

        Each save is waited for once: nothing may be uploaded yet, and then it is the next one's turn.
        """
        if self._since is None or step < min(self._since + _STEPS_AFTER_SAVE, last):
            return False
        self._since = None
        return True

    def stored(self, root: Storage) -> list[int]:
        """Return the micro-steps after which the checkpoints were made that a next life may resume from."""
        places = [mirror.storage for mirror in self._mirrors] or [root]
        progresses = (checkpoint.progress for place in places for checkpoint in list_checkpoints(place))
        return [progress.batches_delivered for progress in progresses if progress is not None]
