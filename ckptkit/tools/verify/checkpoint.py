"""Verifies one checkpoint, its documents and every byte of its files, and reports all problems.

`ckptkit.checkpoint.open` and `ckptkit.checkpoint.read` stop at the first problem, since a start must not use damaged
data. This module continues with whatever can still be checked: without a sound COMMIT and manifest, the listed rank
files are checked by their form alone. Guarantees: reads and never writes; distinguishes a checkpoint removed meanwhile
from a corrupt one; `ckptkit.checkpoint.read.verify` accepts a checkpoint without a problem here. Any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ckptkit.checkpoint.commit import read_commit, reread_if_corrupt
from ckptkit.checkpoint.leaves import StoredLeaves
from ckptkit.checkpoint.open import (
    OpenedCheckpoint,
    check_together,
    check_token,
    committed,
    decode_manifest,
    open_manifest,
    read_rank,
)
from ckptkit.core.worker import each_of
from ckptkit.errors import CheckpointNotFoundError, CkptKitError, CorruptCheckpointError, UnusableCheckpointError
from ckptkit.format.documents import (
    MAX_DOCUMENT_BYTES,
    AttemptDocument,
    Commit,
    FileEntry,
    Manifest,
    RankManifest,
    digest_of,
)
from ckptkit.format.layout import CheckpointName, attempt_key
from ckptkit.storage import Storage
from ckptkit.tools.verify.files import FileProver, Problem

ProofOutcome = Literal["whole", "corrupt", "removed"]

_RANK = re.compile(r"rank-([0-9]{5})\.json")


@dataclass(frozen=True)
class Proof:
    """Holds what was found about one checkpoint.

    Attributes:
        name: Name of the checkpoint.
        outcome: ``removed``: retention or another process removed it meanwhile.
        size_bytes: Size of its shards, including shared frozen ones, as far as its documents could be read.
        problems: All problems; empty if it is whole or was removed.
    """

    name: str
    outcome: ProofOutcome
    size_bytes: int = 0
    problems: tuple[Problem, ...] = ()


def prove_checkpoint(
    storage: Storage,
    name: CheckpointName,
    attempt: AttemptDocument | CkptKitError,
    listed: Mapping[str, int],
    prover: FileProver,
) -> Proof:
    """Verify ``name``.

    Args:
        storage: The run root.
        name: A committed checkpoint, according to a listing.
        attempt: The document of its attempt, or why there is none.
        listed: Sizes by key of everything in its folder and in its attempt's ``frozen/``.
        prover: Reads the shards.

    Raises:
        StorageError: If the storage failed.
    """
    look = _Look(storage, name, attempt, listed)
    try:
        ranks = look.documents()
    except CheckpointNotFoundError:
        return Proof(str(name), "removed")
    shards = {shard.key: shard for document in ranks for shard in document.shards}
    proofs = [prover.prove(shard, listed.get(key)) for key, shard in shards.items()]
    look.problems += [problem for one in proofs if (problem := one.result()) is not None]
    if look.problems and look.is_gone():
        return Proof(str(name), "removed")
    size_bytes = sum(shard.size_bytes for shard in shards.values())
    return Proof(str(name), "corrupt" if look.problems else "whole", size_bytes, tuple(look.problems))


class _Look:
    """Reads the documents of a checkpoint and collects their problems."""

    def __init__(
        self,
        storage: Storage,
        name: CheckpointName,
        attempt: AttemptDocument | CkptKitError,
        listed: Mapping[str, int],
    ) -> None:
        self._storage = storage
        self._name = name
        self._attempt = attempt
        self._listed = listed
        self.problems: list[Problem] = []

    def documents(self) -> list[RankManifest]:
        """Return the readable rank documents; raise CheckpointNotFoundError if the checkpoint was removed."""
        commit = self._commit()
        manifest = self._manifest(commit)
        known = self._attempt.token if isinstance(self._attempt, AttemptDocument) else None
        token = known or (commit.token if commit is not None else None)
        files = self._rank_files(manifest)
        found = each_of([*files.items()], lambda numbered: self._rank(*numbered, token))
        ranks = [one for one in found if isinstance(one, RankManifest)]
        self.problems += [one for one in found if isinstance(one, Problem)]
        if len(ranks) == len(found) and manifest is not None and commit is not None:
            try:
                check_together(OpenedCheckpoint(self._name, commit, manifest, tuple(ranks)))
                StoredLeaves(ranks)
            except CorruptCheckpointError as error:
                self._note(self._name.manifest_key, error)
        return ranks

    def is_gone(self) -> bool:
        """Return whether the checkpoint is no longer committed."""
        try:
            return not isinstance(read_commit(self._storage, self._name), Commit)
        except CorruptCheckpointError:
            return False

    def _note(self, file: str, error: CkptKitError) -> None:
        self.problems.append(Problem(file, str(error)))

    def _commit(self) -> Commit | None:
        if isinstance(self._attempt, CkptKitError):
            self._note(attempt_key(self._name.attempt), self._attempt)
        try:
            commit = committed(self._storage, self._name)
        except UnusableCheckpointError as error:
            self._note(self._name.commit_key, error)
            return None
        if isinstance(self._attempt, AttemptDocument):
            try:
                check_token(self._name, commit, self._attempt)
            except CorruptCheckpointError as error:
                self._note(self._name.commit_key, error)
        return commit

    def _manifest(self, commit: Commit | None) -> Manifest | None:
        """Return the manifest that COMMIT refers to; one without a COMMIT must not accuse the files that it names."""
        key = self._name.manifest_key
        if commit is not None:
            file = FileEntry(key=key, size_bytes=commit.manifest_size_bytes, digest=commit.manifest_digest)
            try:
                return open_manifest(self._storage, self._name, commit)
            except UnusableCheckpointError as error:
                self.problems.append(self._problem(file, error))
            return None
        try:
            reread_if_corrupt(lambda: decode_manifest(self._storage.read(key, MAX_DOCUMENT_BYTES), self._name))
        except FileNotFoundError:
            self.problems.append(Problem(key, f"{key} is missing"))
        except UnusableCheckpointError as error:
            self._note(key, error)
        return None

    def _rank_files(self, manifest: Manifest | None) -> dict[int, FileEntry]:
        """Return the rank files, from the manifest or, without one, from the listing."""
        if manifest is not None:
            return dict(enumerate(manifest.rank_files))
        found = {}
        for key in sorted(self._listed):
            match = _RANK.fullmatch(key.removeprefix(f"{self._name.folder}/"))
            if match is not None:
                data = self._bytes(key) or b""
                found[int(match[1])] = FileEntry(key=key, size_bytes=len(data), digest=digest_of(data))
        return found

    def _rank(self, rank: int, file: FileEntry, token: str | None) -> RankManifest | Problem:
        try:
            return read_rank(self._storage, self._name, rank, file, token)
        except UnusableCheckpointError as error:
            return self._problem(file, error)

    def _problem(self, file: FileEntry, error: CkptKitError) -> Problem:
        """Make the problem of a document; add the digests if they are what is wrong."""
        data = self._bytes(file.key)
        found = digest_of(data) if data is not None else file.digest
        if found == file.digest or file.key not in self._listed:
            return Problem(file.key, str(error))
        return Problem(file.key, str(error), (), file.digest, found)

    def _bytes(self, key: str) -> bytes | None:
        """Return the file's bytes; None if they cannot be read."""
        try:
            return self._storage.read(key, min(self._listed.get(key, 0), MAX_DOCUMENT_BYTES))
        except FileNotFoundError:
            return b""
        except CorruptCheckpointError:
            return None
