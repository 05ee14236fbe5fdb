"""Opens a committed checkpoint: reads its documents and checks them against each other and their digests.

Every link of COMMIT -> manifest -> rank files is checked by size and digest, tokens against the attempt's document,
names against the progress; shards lie in their own folder or are frozen ones of the attempt. No shard is read. A file
that is missing while COMMIT is there is corruption; if COMMIT is gone too, the checkpoint was removed meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckptkit.checkpoint.commit import keys_below, read_commit
from ckptkit.checkpoint.reread import reread_if_corrupt
from ckptkit.core.text import some
from ckptkit.core.worker import each_of
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, UnusableCheckpointError
from ckptkit.format.documents import (
    MAX_DOCUMENT_BYTES,
    AttemptDocument,
    Commit,
    FileEntry,
    Manifest,
    RankManifest,
    ShardEntry,
    decode,
    digest_of,
)
from ckptkit.format.layout import CheckpointName, attempt_key, frozen_folder
from ckptkit.storage import Storage


@dataclass(frozen=True)
class OpenedCheckpoint:
    """Holds the documents of a committed checkpoint, which were checked to belong together."""

    name: CheckpointName
    commit: Commit
    manifest: Manifest
    ranks: tuple[RankManifest, ...]

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for rank in self.ranks for shard in rank.shards)

    def size_bytes_for(self, rank: int) -> int:
        """Return the size of the shards that ``rank`` needs: its own, and those that all ranks share."""
        return sum(
            shard.size_bytes
            for document in self.ranks
            for shard in document.shards
            if document.rank == rank or shard.placement != "per_rank"
        )


def open_checkpoint(storage: Storage, name: CheckpointName, attempt: AttemptDocument) -> OpenedCheckpoint:
    commit = committed(storage, name)
    check_token(name, commit, attempt)
    manifest = open_manifest(storage, name, commit)
    files = [*enumerate(manifest.rank_files)]
    ranks = each_of(files, lambda numbered: read_rank(storage, name, *numbered, attempt.token))
    opened = OpenedCheckpoint(name, commit, manifest, tuple(ranks))
    check_together(opened)
    return opened


def open_part(storage: Storage, name: CheckpointName, attempt: AttemptDocument, rank: int) -> OpenedCheckpoint:
    """Open ``name`` for one rank: the documents of the other ranks are not read; theirs have no shards and no state."""
    commit = committed(storage, name)
    check_token(name, commit, attempt)
    manifest = open_manifest(storage, name, commit)
    own = read_rank(storage, name, rank, manifest.rank_files[rank], attempt.token)
    ranks = [own.model_copy(update={"rank": other, "shards": [], "state": {}}) for other in range(manifest.world_size)]
    ranks[rank] = own
    return OpenedCheckpoint(name, commit, manifest, tuple(ranks))


def check_together(opened: OpenedCheckpoint) -> None:
    """Raise CorruptCheckpointError unless all rank documents are of one save and add up to the manifest's size."""
    name, first = opened.name, opened.ranks[0].save_number
    for document in opened.ranks:
        if document.save_number != first:
            raise CorruptCheckpointError(
                f"{name.rank_key(document.rank)} belongs to save {document.save_number}, {name.rank_key(0)} to "
                f"save {first}"
            )
    if opened.size_bytes != opened.manifest.size_bytes:
        raise CorruptCheckpointError(
            f"{name.manifest_key} says that all shards have {opened.manifest.size_bytes} bytes, its rank files say "
            f"{opened.size_bytes}"
        )


def check_token(name: CheckpointName, commit: Commit, attempt: AttemptDocument) -> None:
    if commit.token != attempt.token:
        raise CorruptCheckpointError(
            f"{name.commit_key} has the token {commit.token}, {attempt_key(name.attempt)} has {attempt.token}"
        )


def manifest_entry(name: CheckpointName, commit: Commit) -> FileEntry:
    return FileEntry(key=name.manifest_key, size_bytes=commit.manifest_size_bytes, digest=commit.manifest_digest)


def open_manifest(storage: Storage, name: CheckpointName, commit: Commit) -> Manifest:
    return decode_manifest(read_entry(storage, name, manifest_entry(name, commit)), name)


def read_metrics(storage: Storage, name: CheckpointName, commit: Commit) -> dict[str, float]:
    """Read the metrics of ``name``; empty if nothing is left of it but COMMIT, as where that arrived late."""
    try:
        metrics = open_manifest(storage, name, commit).metrics
    except (UnusableCheckpointError, CheckpointNotFoundError):
        if keys_below(storage, name.folder) == [name.commit_key]:
            return {}
        raise
    return {key: value for key, value in metrics.items() if value is not None}


def decode_manifest(data: bytes, name: CheckpointName) -> Manifest:
    manifest = decode(data, Manifest, name.manifest_key)
    progress = manifest.progress
    if manifest.checkpoint != str(name) or (progress.cycles, progress.micro_step) != (name.cycles, name.micro_step):
        raise CorruptCheckpointError(
            f"{name.manifest_key} is the manifest of {manifest.checkpoint[:80]} at cycle {progress.cycles}, "
            f"micro-step {progress.micro_step}"
        )
    if len(manifest.rank_files) != manifest.world_size:
        raise CorruptCheckpointError(
            f"{name.manifest_key} lists {len(manifest.rank_files)} rank files for {manifest.world_size} ranks"
        )
    for rank, file in enumerate(manifest.rank_files):
        if file.key != name.rank_key(rank):
            raise CorruptCheckpointError(f"{name.manifest_key} lists {file.key} as the file of rank {rank}")
    return manifest


def committed(storage: Storage, name: CheckpointName) -> Commit:
    commit = read_commit(storage, name)
    if not isinstance(commit, Commit):
        raise CheckpointNotFoundError(f"the checkpoint {name} is not committed, or was removed")
    return commit


def read_rank(storage: Storage, name: CheckpointName, rank: int, file: FileEntry, token: str | None) -> RankManifest:
    document = decode(read_entry(storage, name, file), RankManifest, file.key)
    expected = (str(name), rank, document.token if token is None else token)
    if (document.checkpoint, document.rank, document.token) != expected:
        raise CorruptCheckpointError(
            f"{file.key} belongs to rank {document.rank} of {document.checkpoint[:80]}, token {document.token}"
        )
    for shard in document.shards:
        folder, _, shard_file = shard.key.rpartition("/")
        is_shared = folder == frozen_folder(name.attempt) and shard_file == f"{shard.digest}.safetensors"
        if folder != name.rank_folder(rank) and not is_shared:
            raise CorruptCheckpointError(f"{name.rank_key(rank)} names a shard outside of its folder: {shard.key}")
    return document


def read_entry(storage: Storage, name: CheckpointName, entry: FileEntry) -> bytes:
    if entry.size_bytes > MAX_DOCUMENT_BYTES:
        raise CorruptCheckpointError(
            f"{entry.key} is listed with {entry.size_bytes} bytes, which is too large for a document"
        )

    def read() -> bytes:
        data = storage.read(entry.key, entry.size_bytes)
        if len(data) != entry.size_bytes:
            size = "more" if len(data) > entry.size_bytes else str(len(data))
            raise CorruptCheckpointError(f"{entry.key} has {size} bytes, expected {entry.size_bytes}")
        check_digest(entry, digest_of(data))
        return data

    try:
        return reread_if_corrupt(read)
    except FileNotFoundError as error:
        raise missing(storage, name, entry.key) from error


def check_digest(entry: FileEntry, digest: str) -> None:
    if digest != entry.digest:
        tensors = [tensor.name for tensor in entry.tensors] if isinstance(entry, ShardEntry) else []
        inside = f" (it holds {some(tensors)})" if tensors else ""
        raise CorruptCheckpointError(f"{entry.key}{inside} has the digest {digest}, expected {entry.digest}")


def missing(storage: Storage, name: CheckpointName, key: str) -> CheckpointNotFoundError | CorruptCheckpointError:
    """Return the error for a missing file: the checkpoint was removed meanwhile, or it is corrupt."""
    if isinstance(read_commit(storage, name), Commit):
        return CorruptCheckpointError(f"{key} is missing")
    return CheckpointNotFoundError(f"the checkpoint {name} was removed while it was read")


def compare_size(storage: Storage, name: CheckpointName, key: str, size_bytes: int | None, expected: int) -> None:
    """Raise an error if a file of ``name`` has not the ``expected`` size; None says that it is missing."""
    if size_bytes is None:
        raise missing(storage, name, key)
    if size_bytes != expected:
        raise CorruptCheckpointError(f"{key} has {size_bytes} bytes, expected {expected}")
