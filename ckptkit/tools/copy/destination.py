"""Checks what is at the target of a copy, and whether all of it is the source's.

Everything but `Destination.make_durable` and `Destination.empty` only reads. A file that is not known to be the copy's
is named and refused, never removed. Damage in existing files is found by content, not by size. Any single thread.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from ckptkit.checkpoint.commit import keys_below, make_durable, read_commit, read_document, remove_data, void_or_leave
from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.read import verify
from ckptkit.checkpoint.transfer import ADVICE, files_of, holds, is_hidden
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError
from ckptkit.format.documents import Commit, CopiedFrom, RunDocument, Void
from ckptkit.format.events import MAX_SEGMENT_BYTES
from ckptkit.format.layout import (
    ATTEMPTS,
    CHECKPOINTS,
    EVENTS,
    FROZEN,
    RUN,
    CheckpointName,
    attempt_key,
    attempt_of,
    parse_frozen,
)
from ckptkit.run.index import Index
from ckptkit.storage import Storage
from ckptkit.storage.lease import LEASE, PROBE

_FOLDERS = (ATTEMPTS, CHECKPOINTS, EVENTS, FROZEN)
_FROZEN_FILE = re.compile(r"[0-9a-f]{32}\.safetensors")


class Destination:
    """Surveys the target once."""

    def __init__(self, storage: Storage, source_url: str) -> None:
        self._storage = storage
        self._source_url = source_url
        top = storage.list("")
        for foreign in sorted({*top.folders, *top.files} - {RUN, LEASE, PROBE, *_FOLDERS}):
            if not is_hidden(foreign):
                raise self._foreign(foreign)
        below = [storage.walk(f"{folder}/") for folder in _FOLDERS if folder in top.folders]
        self._keys = {key for keys in below for key in keys if not is_hidden(key)}
        self.events = frozenset(key for key in self._keys if key.startswith(f"{EVENTS}/"))
        self._names = {name for key in self._keys if (name := _checkpoint_of(key)) is not None}
        self._is_alone = False
        self.run: RunDocument | None = None
        if RUN in top.files:
            try:
                self.run = read_document(storage, RUN, RunDocument)
            except CorruptCheckpointError as error:
                raise ResumeError(f"{error} (at {storage.url}). {ADVICE}") from error

    def accept_run(self, origin: CopiedFrom) -> None:
        """Raise ResumeError unless the run here is a copy of ``origin``, or the target is empty."""
        self._is_alone = origin.checkpoint is not None
        if self.run is None:
            if self._keys:
                raise self._foreign(min(self._keys))
            return
        copied = self.run.copied_from
        if copied is None:
            raise ResumeError(f"{self._storage.url} holds a run that is not a copy, according to its {RUN}. {ADVICE}")
        is_other = (copied.run_id, copied.checkpoint) != (origin.run_id, origin.checkpoint)
        if is_other or (origin.run_id is None and copied.url != origin.url):  # its URL identifies a source without id
            what = f"the checkpoint {copied.checkpoint}" if copied.checkpoint else "the whole run"
            raise ResumeError(
                f"{self._storage.url} holds a copy of something else, according to its {RUN}: {what} of {copied.url}. "
                f"{ADVICE}"
            )

    def examine(
        self, index: Index, attempts: Mapping[str, bytes], planned: Collection[CheckpointName]
    ) -> tuple[list[CheckpointName], list[CheckpointName]]:
        """Check everything that is in no ``planned`` checkpoint and is not an event of a whole run.

        ``attempts`` are the copy's documents, by key. Returns the checkpoints here that the source, as ``index`` shows
        it, no longer has: those that are committed and whole, which stay; and those that are not committed, of which
        what was copied is useless. Raises ResumeError, which names it, if there is a file that the copy does not have.
        """
        self.events = frozenset(key for key in self.events if not self._is_forgotten(key, index))
        kept, left = self._others(index, planned)
        expected = {*planned, *kept, *left}
        documented = set() if self._is_alone else {attempt_key(number) for number in index.documented}
        for key in sorted(self._keys if self._is_alone else self._keys - self.events):
            if key in attempts:
                if not holds(self._storage, key, attempts[key]):
                    raise ResumeError(
                        f"{key} at {self._storage.url} differs from the one at {self._source_url}: another job "
                        f"continued there. {ADVICE}"
                    )
            elif not self._is_expected(key, index, expected):
                raise self._damaged(key) if key in documented else self._foreign(key)
        return kept, left

    def make_durable(self) -> None:
        """Make the existing documents survive a power loss before anything builds on them; call after `examine`."""
        if self._storage.is_remote:
            return
        documents = [RUN] if self.run is not None else []
        for key in documents + sorted(filter(_is_created, self._keys)):
            make_durable(self._storage, key, self._storage.read(key, MAX_SEGMENT_BYTES), MAX_SEGMENT_BYTES)

    def empty(self, name: CheckpointName, token: str) -> None:
        """Void the folder of a checkpoint that the source lost, and remove what was copied of it."""
        if keys_below(self._storage, name.folder) and void_or_leave(self._storage, name, token):
            remove_data(self._storage, name)

    def has(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        self._keys.add(key)

    def _others(
        self, index: Index, planned: Collection[CheckpointName]
    ) -> tuple[list[CheckpointName], list[CheckpointName]]:
        kept: list[CheckpointName] = []
        left: list[CheckpointName] = []
        if self._is_alone:
            return kept, left
        for name in sorted(self._names - {*planned}):
            if name.attempt not in index.attempts:
                continue
            keys = {key for key in self._keys if key.startswith(f"{name.folder}/")} - {name.commit_key}
            if isinstance(self._commit(name), Commit):
                self._prove(name, index, keys)
                kept.append(name)
            elif keys:
                left.append(name)
        return kept, left

    def _prove(self, name: CheckpointName, index: Index, keys: set[str]) -> None:
        try:
            opened = open_checkpoint(self._storage, name, index.document(name.attempt))
            verify(self._storage, opened)
        except (CorruptCheckpointError, CheckpointNotFoundError) as error:
            raise ResumeError(
                f"{name} is at {self._storage.url} but no longer at {self._source_url}, and is damaged: {error}. "
                f"{ADVICE}"
            ) from error
        for key in sorted(keys - {file.key for file in files_of(opened)}):
            raise self._foreign(key)

    def _commit(self, name: CheckpointName) -> Commit | Void | None:
        try:
            return read_commit(self._storage, name)
        except CorruptCheckpointError as error:
            raise ResumeError(f"{error}. {ADVICE}") from error

    def _is_expected(self, key: str, index: Index, expected: Collection[CheckpointName]) -> bool:
        name = _checkpoint_of(key)
        if name is not None:
            return name in expected or (key == name.commit_key and isinstance(self._commit(name), Void))
        if self._is_forgotten(key, index):
            return True
        folder, _, file = key.rpartition("/")
        attempt = parse_frozen(folder.removeprefix(f"{FROZEN}/"))
        # An unreferenced one is left from a checkpoint that the source lost; the next start here removes it.
        return attempt in index.attempts and _FROZEN_FILE.fullmatch(file) is not None

    def _is_forgotten(self, key: str, index: Index) -> bool:
        """Return whether the source may have removed ``key``, with everything of its start, since it was copied."""
        attempt = attempt_of(key)
        return (
            not self._is_alone
            and key.startswith((f"{ATTEMPTS}/", f"{EVENTS}/"))
            and attempt is not None
            and index.has_forgotten(attempt)
            and all(name.attempt != attempt for name in self._names)
        )

    def _damaged(self, key: str) -> ResumeError:
        return ResumeError(
            f"{key} cannot be read at {self._source_url}, so it is unknown whether the file at {self._storage.url} "
            "is the same. If no job was started on the copy, it is the same: copy it back to the source. Otherwise "
            "copy to a new root. Nothing was changed."
        )

    def _foreign(self, key: str) -> ResumeError:
        return ResumeError(f"{key} is at {self._storage.url} but not at {self._source_url}. {ADVICE}")


def _is_created(key: str) -> bool:
    """Return whether the file ``key`` is created in one step, so that it is never seen in part."""
    name = _checkpoint_of(key)
    return key == name.commit_key if name is not None else not key.startswith(f"{FROZEN}/")


def _checkpoint_of(key: str) -> CheckpointName | None:
    parts = key.split("/")
    return CheckpointName.parse(parts[1]) if parts[0] == CHECKPOINTS and len(parts) > 2 else None
