"""Many small files of a remote storage are read beside each other, and never more than a window holds."""

from __future__ import annotations

import threading

import pytest
from support.runs.dict_storage import DictStorage

from ckptkit.checkpoint.read import ShardStream
from ckptkit.checkpoint.shard_bytes import ShardBytes
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import ShardEntry, digest_of
from ckptkit.format.layout import CheckpointName

NAME = CheckpointName(1, 5, 0)


class Watched(DictStorage):
    """Remembers what was read, and by whom."""

    def __init__(self, files, window_bytes: int, is_remote: bool = True) -> None:
        super().__init__(files)
        self.window_bytes = window_bytes
        self.is_remote = is_remote
        self.calls: list[tuple[str, bool]] = []

    def read_into(self, key, buffers, offset_bytes=0):
        self.calls.append((key, threading.current_thread() is threading.main_thread()))
        return super().read_into(key, buffers, offset_bytes)


def shards(*sizes: int) -> list[ShardEntry]:
    return [
        ShardEntry(
            key=f"{NAME.rank_folder(rank)}/weights-000.safetensors",
            size_bytes=size,
            digest=digest_of(bytes([rank]) * size),
            role="weights",
            tensors=[],
            blocks=None,
        )
        for rank, size in enumerate(sizes)
    ]


def storage_of(entries: list[ShardEntry], window_bytes: int, **options) -> Watched:
    files = {one.key: bytes([number]) * one.size_bytes for number, one in enumerate(entries)}
    return Watched(files, window_bytes, **options)


@pytest.mark.parametrize("is_remote", [True, False])
def test_every_file_is_read_and_told_once(is_remote):
    entries = shards(*[10] * 20)
    storage = storage_of(entries, 1000, is_remote=is_remote)
    told: list[int] = []
    ShardStream(storage, NAME, {}, told.append).prove_files(entries)
    assert sum(told) == 200
    beside = [key for key, in_main in storage.calls if not in_main]
    assert sorted(beside) == (sorted(storage.files) if is_remote else [])
    assert len(storage.calls) == 20


def test_batch_never_exceeds_window_or_one_file():
    files = ShardBytes(storage_of([], 100), NAME)
    sizes = [60, 40, 1, 300, 50, 50, 100]
    assert [[one.size_bytes for one in batch] for batch in files.groups(shards(*sizes))] == [
        [60, 40],
        [1],
        [300],
        [50, 50],
        [100],
    ]
    assert list(files.groups([])) == []


def test_truncated_file_is_named():
    entries = shards(*[10] * 8)
    storage = storage_of(entries, 1000)
    storage.files[entries[6].key] = b"short"
    storage.files |= {NAME.commit_key: b""}
    with pytest.raises(CorruptCheckpointError, match=r"rank-00006/.*ends at byte 5"):
        ShardStream(storage, NAME, {}).prove_files(entries)
