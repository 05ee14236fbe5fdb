"""Lists checkpoints with progress and size, and tells why each one is still kept; reads only, and proves no shard.

A checkpoint whose documents are corrupt is listed with the reason: `list_rows` checks the manifest and the sizes of all
files, `latest_checkpoint` COMMIT and the manifest.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, pairwise
from typing import Literal

from ckptkit.checkpoint.open import compare_size, decode_manifest, missing, open_manifest, read_rank
from ckptkit.checkpoint.receipts import certified_from
from ckptkit.checkpoint.reread import reread_if_corrupt
from ckptkit.core.progress import Progress
from ckptkit.core.worker import each_of
from ckptkit.errors import CheckpointNotFoundError, CkptKitError, CorruptCheckpointError, UnusableCheckpointError
from ckptkit.format.documents import MAX_DOCUMENT_BYTES, Commit, Manifest
from ckptkit.format.layout import FROZEN, MANIFEST, CheckpointName, attempt_of
from ckptkit.run.index import Index, Survey, commit_bytes
from ckptkit.run.resolve import Candidates, choose, newest_head, read_latest
from ckptkit.storage import Storage

Reason = Literal["latest", "newest-two", "policy", "off-lineage", "unknown"]


@dataclass(frozen=True)
class CheckpointInfo:
    """Describes one committed checkpoint.

    Attributes:
        name: Its name, as `resume(checkpoint=...)` takes it.
        attempt: The number of the attempt that wrote it.
        progress: Its progress; None if its documents cannot be read.
        created_at: ISO 8601, by the clock of the writing process; for people only.
        size_bytes: The size of all shards.
        metrics: The metrics given at the save; None for a value that was not finite.
        problem: Why it cannot be used, as far as it was checked; None if no problem was found.
    """

    name: str
    attempt: int
    progress: Progress | None = None
    created_at: str = ""
    size_bytes: int = 0
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    problem: str | None = None


@dataclass
class Rows:
    shown: list[CheckpointInfo]
    left_out: int
    new_bytes: Mapping[str, int]
    certified: Mapping[str, Sequence[str]]
    latest: str | None = None
    problem: CkptKitError | None = None
    kept: Mapping[str, Kept] = field(default_factory=dict)


def list_checkpoints(storage: Storage) -> list[CheckpointInfo]:
    """List every committed checkpoint, oldest attempt first, as `list_rows` does."""
    return list_rows(storage, None).shown


def latest_checkpoint(storage: Storage) -> CheckpointInfo | None:
    """Return the checkpoint that a start would try first, or None for a fresh start."""

    def describe(index: Index, name: CheckpointName) -> CheckpointInfo:
        commit = index.commit(name)
        if isinstance(commit, Commit):
            return _describe(name, lambda name: open_manifest(storage, name, commit))
        return CheckpointInfo(str(name), name.attempt, problem=str(commit))  # only what is committed is chosen

    return read_latest(storage, describe)


def list_rows(storage: Storage, most: int | None) -> Rows:
    """List the newest ``most`` checkpoints, or all, with one read for each and one for each of their attempts.

    Sizes that do not add up cost the documents of that checkpoint's ranks.
    """
    survey = Survey(storage)
    names = list(filter(survey.is_committed, survey.names))
    shown = names if most is None else names[-most:]
    walked, lock = cache(lambda: storage.walk(f"{FROZEN}/")), threading.Lock()

    def frozen() -> Mapping[str, int]:  # asked for after the checkpoints, which need it
        with lock:  # several threads may ask at once, and a listing is made once
            return walked()

    def describe(name: CheckpointName) -> CheckpointInfo | None:
        with contextlib.suppress(CheckpointNotFoundError):  # a running job has removed it since
            return _describe(name, lambda name: _read_manifest(storage, survey.files(name), frozen, name))
        return None

    rows = Rows(
        [info for info in each_of(shown, describe) if info is not None],
        len(names) - len(shown),
        {str(name): sum(survey.files(name).values()) for name in shown},
        {str(name): certified_from(survey.files(name)) for name in shown},
    )
    try:
        first = choose(survey).first
        rows.latest = str(first) if first else None
        rows.kept = why_kept(survey, shown)
    except UnusableCheckpointError as error:
        rows.problem = error
    return rows


def _read_manifest(
    storage: Storage, files: Mapping[str, int], frozen: Callable[[], Mapping[str, int]], name: CheckpointName
) -> Manifest:
    """Read the manifest of ``name``; raise CorruptCheckpointError if the listed sizes show that a file is damaged.

    ``files`` has the sizes in its folder, ``frozen`` returns those of all shared shards by key.
    """
    size_bytes = files.get(MANIFEST)
    if size_bytes is None:
        raise missing(storage, name, name.manifest_key)
    if size_bytes > MAX_DOCUMENT_BYTES:
        raise CorruptCheckpointError(f"{name.manifest_key} has {size_bytes} bytes, which is too large for a document")
    try:
        # Limit the read to the listed size: a storage may allocate memory for all that it is allowed to read.
        manifest = reread_if_corrupt(lambda: decode_manifest(storage.read(name.manifest_key, size_bytes), name))
    except FileNotFoundError as error:
        raise missing(storage, name, name.manifest_key) from error
    own = {f"{name.folder}/{file}": size for file, size in files.items()}
    own_bytes = sum(size for key, size in own.items() if key.endswith(".safetensors"))
    is_whole = own_bytes == manifest.size_bytes
    shared = {} if is_whole else {key: size for key, size in frozen().items() if attempt_of(key) == name.attempt}
    sizes = {**shared, **own}
    expected = {
        name.commit_key: commit_bytes(size_bytes),
        **{file.key: file.size_bytes for file in manifest.rank_files},
    }
    if own_bytes + sum(shared.values()) != manifest.size_bytes:  # the ranks' documents tell which file
        ranks = (read_rank(storage, name, rank, file, None) for rank, file in enumerate(manifest.rank_files))
        expected.update({shard.key: shard.size_bytes for document in ranks for shard in document.shards})
    for key, expected_bytes in expected.items():
        compare_size(storage, name, key, sizes.get(key), expected_bytes)
    return manifest


def _describe(name: CheckpointName, read: Callable[[CheckpointName], Manifest]) -> CheckpointInfo:
    """Describe ``name`` by its manifest, or say why that cannot be used."""
    try:
        manifest = read(name)
    except UnusableCheckpointError as error:
        return CheckpointInfo(str(name), name.attempt, problem=str(error))
    return CheckpointInfo(
        name=str(name),
        attempt=name.attempt,
        progress=manifest.progress,
        created_at=manifest.created_at,
        size_bytes=manifest.size_bytes,
        metrics=manifest.metrics,
    )


@dataclass(frozen=True)
class Kept:
    reason: Reason
    parent_of: int | None = None


def why_kept(index: Index, names: Sequence[CheckpointName]) -> dict[str, Kept]:
    """Tell why each of ``names`` is still there; takes a read for each attempt of the lineage that is among them."""
    head, _ = newest_head(index)
    if head is None:
        return {str(name): Kept("unknown") for name in names}
    segments = [*head.lineage.down_to(min((name.attempt for name in names), default=0))]
    newest = {*islice((name for name in Candidates(index, head.lineage) if not index.is_foreign(name)), 2)}
    parents = {older.last: newer.attempt for newer, older in pairwise(segments)}

    def why(name: CheckpointName) -> Kept:
        if name == head.first:
            return Kept("latest", parents.get(name))
        if name in newest:
            return Kept("newest-two", parents.get(name))
        if any(name in segment for segment in segments):
            return Kept("policy", parents.get(name))
        is_beyond = head.lineage.broken_at is not None and name.attempt <= head.lineage.broken_at
        return Kept("unknown" if is_beyond else "off-lineage")

    return {str(name): why(name) for name in names}
