"""One file on its way into a bucket, in parts beside each other.

Guarantees: the object appears whole or not at all; an upload that fails is aborted, so that its parts cost nothing, and
one that cannot be is left to a later start (`ckptkit.storage.Storage.clear_unfinished`); whether a completion took
effect whose reply was lost is settled by reading a token back that the object carries. The source is asked by the
calling thread only.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
from collections.abc import Sequence
from types import TracebackType

from typing_extensions import Self

from ckptkit.errors import StorageError
from ckptkit.storage.s3.lanes import Lanes
from ckptkit.storage.s3.requests import Bucket
from ckptkit.storage.source import Source

_log = logging.getLogger("ckptkit")
_MARK = "ckptkit-upload"


class Upload:
    """A multipart upload; as a context, it is aborted when it is left without being completed.

    Args:
        bucket: Where.
        key: Of the object.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._token = secrets.token_hex(16)
        self._id = ""
        self._has_lost = False
        self._tags: list[str] = []
        self._completed = False

    def __enter__(self) -> Self:
        self._id, self._has_lost = self._bucket.begin_upload(self._key, {_MARK: self._token})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            return  # an interpreter that is being ended waits for no server
        try:
            if not self._completed:
                self._bucket.abort_upload(self._key, self._id)
            if self._has_lost:
                self._abort_lost()
        except StorageError as also:
            _log.warning("an upload that failed could not be aborted, a later start will: %s", also)

    def send(self, source: Source, lanes: Lanes, buffers: Sequence[memoryview]) -> None:
        """Send all of ``source`` in parts as large as ``buffers``, which ``lanes`` may still read afterwards."""
        count = -(-source.left_bytes // len(buffers[0]))
        self._tags = [""] * count
        free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for memory in buffers:
            free.put(memory)
        for number in range(1, count + 1):
            memory = free.get()
            part = memory[: source.fill(memory)]

            def job(number: int = number, memory: memoryview = memory, part: memoryview = part) -> None:
                try:
                    if not lanes.stop.is_set():
                        self._tags[number - 1] = self._put(number, part, lanes.stop)
                finally:
                    free.put(memory)  # also after a failure: the caller waits for memory before it looks

            lanes.submit(job)

    def complete(self) -> None:
        """Make the object.

        Raises:
            StorageError: If it may or may not be there.
        """
        try:
            self._bucket.complete_upload(self._key, self._id, self._tags)
        except FileNotFoundError as error:
            if not self._is_ours():
                raise self._gone() from error
            # Only the reply was lost: this was the second try, and the first had made the object.
        self._completed = True

    def _put(self, number: int, part: memoryview, stop: threading.Event) -> str:
        try:
            return self._bucket.put_part(self._key, self._id, number, part, stop)
        except FileNotFoundError as error:
            raise self._gone() from error

    def _gone(self) -> StorageError:
        return StorageError(
            f"could not write {self._key}: its upload is gone. Another process that took this run over has cleared it "
            "away, or a lifecycle rule of the bucket has"
        )

    def _abort_lost(self) -> None:
        # Nobody else writes this key: its name has the number of this process's attempt.
        for key, upload in self._bucket.uploads(self._key):
            if key == self._key and upload != self._id:
                self._bucket.abort_upload(key, upload)

    def _is_ours(self) -> bool:
        mark = self._bucket.mark(self._key)
        return mark is not None and mark.get(_MARK) == self._token
