"""Copies the files below ``events/`` from one root to another, byte for byte.

Guarantees: a file at the target that is missing or different at the source is named and refused before anything is
written. Contents are not checked: a damaged file is copied as it is, for readers to report. Any single thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ckptkit.checkpoint.commit import create_once, list_attempts
from ckptkit.checkpoint.transfer import ADVICE
from ckptkit.core.worker import each_of
from ckptkit.errors import ResumeError, UnusableCheckpointError
from ckptkit.format.events import MAX_SEGMENT_BYTES, decode_segment
from ckptkit.format.layout import EVENTS, attempt_of, parse_segment
from ckptkit.storage import Storage


class EventInventory:
    """Compares and copies the events of a whole run.

    Args:
        source: The root to copy from.
        target: The root to copy to.
    """

    def __init__(self, source: Storage, target: Storage) -> None:
        self._source = source
        self._target = target
        self._there: set[str] = set()
        self._attempts: Collection[int] = ()

    def compare(self, there: Iterable[str], attempts: Collection[int]) -> None:
        """Compare the target's files with the source's.

        Args:
            there: Keys of the target's files.
            attempts: Attempts that had a document at the source when the target was surveyed.

        Raises:
            ResumeError: If one is not the source's.
            StorageError: If one of the two storages failed.
        """
        keys = sorted(there)
        self._attempts = attempts
        for key, is_same in zip(keys, each_of(keys, self._is_same), strict=True):
            if not is_same:
                raise ResumeError(f"{key} at {self._target.url} differs from the one at {self._source.url}. {ADVICE}")
        self._there = set(keys)

    def carry(self) -> None:
        """Copy what the source has now and the target does not; call after `compare`.

        Raises:
            ResumeError: If another process writes to the target too.
            StorageError: As for `compare`.
        """
        files = self._source.list(EVENTS).files
        for file in sorted(file for file in files if parse_segment(file) is not None):
            key = f"{EVENTS}/{file}"
            if key in self._there or files[file] > MAX_SEGMENT_BYTES:
                continue
            try:
                data = self._original(key)
            except FileNotFoundError:
                continue  # a start there has just forgotten its attempt
            if create_once(self._target, key, data, MAX_SEGMENT_BYTES) != data:
                raise ResumeError(f"another process has just made {key} at {self._target.url}. {ADVICE}")

    def _is_same(self, key: str) -> bool:
        if parse_segment(key.removeprefix(f"{EVENTS}/")) is None:
            return False
        try:
            original = self._original(key)
        except FileNotFoundError:
            attempt = attempt_of(key)  # a start there may have forgotten it since the survey
            return attempt in self._attempts and attempt not in list_attempts(self._source)
        return any(self._target.read(key, MAX_SEGMENT_BYTES) == original for _ in range(2))

    def _original(self, key: str) -> bytes:
        data = self._source.read(key, MAX_SEGMENT_BYTES)
        try:
            decode_segment(data, key)
        except UnusableCheckpointError:
            return self._source.read(key, MAX_SEGMENT_BYTES)  # the answer may have been wrong, and not the file
        return data
