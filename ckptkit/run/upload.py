"""Uploads committed checkpoints of the local root to its mirror, one at a time.

Fence check, documents of attempts, `ckptkit.checkpoint.transfer`, fence check, COMMIT, retention: the order of
`ckptkit.run.saver`, with the bytes that are committed at the local root. Guarantees: what is committed at the mirror is
whole, and its lineage can be followed there; what an upload that ended early left there is finished by the next upload
of the same checkpoint, or voided and removed after one of a later checkpoint. A folder of an earlier attempt is swept
only after the first upload, since it may be the very checkpoint that this attempt began with, half uploaded. Any
thread, one at a time.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Literal

from ckptkit.checkpoint.commit import keys_below, make_durable, read_commit, remove_data, void
from ckptkit.checkpoint.open import OpenedCheckpoint, open_checkpoint
from ckptkit.checkpoint.transfer import Transfer
from ckptkit.core.policies import KeepPolicy
from ckptkit.errors import CkptKitError, CorruptCheckpointError, StaleAttemptError, StorageError
from ckptkit.format.documents import AttemptDocument, Void, encode
from ckptkit.format.layout import FROZEN, CheckpointName
from ckptkit.run.fence import check_fence
from ckptkit.run.index import Documents
from ckptkit.run.retention import Retention
from ckptkit.run.sweep import sweep
from ckptkit.run.two_roots import share_documents
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")

UploadOutcome = Literal["copied", "present", "void"]


class Uploader:
    """The uploads of one attempt.

    Args:
        local: Where checkpoints are committed first.
        mirror: Where they are uploaded to.
        attempt: The attempt, which was opened over both.
        run_id: Of the run that it was opened on.
        policy: What the mirror keeps beyond what is always kept.

    Attributes:
        size_bytes: Of the newest upload, or of the one under way.
        done_bytes: Of it, how many lie at the mirror.
    """

    def __init__(
        self, local: Storage, mirror: Storage, attempt: AttemptDocument, run_id: str, policy: KeepPolicy
    ) -> None:
        self._local = local
        self._mirror = mirror
        self._attempt = attempt
        self._run_id = run_id
        self._retention = Retention(mirror, attempt, policy)
        self._proven: set[str] = set()
        self._begun: set[CheckpointName] = set()
        self._has_documents = False
        self.size_bytes = 0
        self.done_bytes = 0

    def upload(self, name: CheckpointName) -> UploadOutcome:
        """Have ``name`` committed at the mirror too, then remove there what is no longer wanted.

        Args:
            name: A checkpoint of the local root.

        Returns:
            ``"copied"``; ``"present"``: it was there before; ``"void"``: the mirror's folder of that name may never
            become a checkpoint, because an attempt gave it up.

        Raises:
            CheckpointNotFoundError: If it is not at the local root any more.
            StaleAttemptError: If a later attempt exists at the mirror.
            CorruptCheckpointError: If the local copy is damaged, or the mirror's COMMIT.
            ResumeError: If another file lies in its place at the mirror.
            StorageError: If one of the two failed. The same call goes on.
        """
        check_fence(self._mirror, self._attempt, put_back=self._run_id)
        if not self._has_documents:
            share_documents(self._local, self._mirror, self._attempt)
            self._has_documents = True
        there = read_commit(self._mirror, name)
        if there is not None:
            make_durable(self._mirror, name.commit_key, encode(there))
            return "void" if isinstance(there, Void) else "present"
        try:
            self._copy(open_checkpoint(self._local, name, self._document(name)))
        except CkptKitError:
            # Whoever took the run over has perhaps swept away what was uploaded so far, and that is what to tell.
            with contextlib.suppress(StorageError):
                check_fence(self._mirror, self._attempt)
            raise
        self._tidy(name)
        return "copied"

    def sweep(self) -> None:
        """Remove at the mirror what earlier attempts left uncommitted; as `ckptkit.run.sweep.sweep`."""
        sweep(self._mirror, self._attempt, has_mirror=True)

    def _document(self, name: CheckpointName) -> AttemptDocument:
        own = name.attempt == self._attempt.attempt
        return self._attempt if own else Documents(self._local).document(name.attempt)

    def _copy(self, opened: OpenedCheckpoint) -> None:
        self._begun.add(opened.name)
        self.size_bytes, self.done_bytes = opened.size_bytes, 0
        transfer = Transfer(self._local, self._mirror, opened, self._proven)
        transfer.compare(self._count)
        transfer.finish(self._count, before_commit=lambda: check_fence(self._mirror, self._attempt))
        self._proven.intersection_update({key for key in self._proven if key.startswith(f"{FROZEN}/")})

    def _count(self, size_bytes: int) -> None:
        self.done_bytes += size_bytes

    def _tidy(self, name: CheckpointName) -> None:
        """After a commit at the mirror: what is older than ``name`` there may go."""
        self._begun.discard(name)
        try:
            self._retention.prune()
            self._remove_given_up()
        except StaleAttemptError:
            raise
        except Exception as error:  # noqa: BLE001 - also a keep policy's own: the checkpoint is at the mirror either way
            _log.warning(
                "the upload is done, but older files at %s could not be removed", self._mirror.url, exc_info=error
            )

    def _remove_given_up(self) -> None:
        if not self._begun:
            return
        check_fence(self._mirror, self._attempt)
        for name in sorted(self._begun):
            if keys_below(self._mirror, name.folder) and self._is_void(name):
                remove_data(self._mirror, name)
            self._begun.discard(name)

    def _is_void(self, name: CheckpointName) -> bool:
        try:
            return isinstance(void(self._mirror, name, self._attempt.token), Void)
        except CorruptCheckpointError as error:
            _log.warning("%s; the folder at %s is left as it is", error, self._mirror.url)
            return False
