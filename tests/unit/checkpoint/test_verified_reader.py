"""Many small files of a remote storage are fetched beside each other, and never more than a window holds."""

from __future__ import annotations

import threading

import pytest
from support.runs.dict_storage import DictStorage

from ckptkit.checkpoint.leaves import ShardBytes
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import ShardEntry
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
            digest="0" * 32,
            role="weights",
            tensors=[],
            blocks=None,
        )
        for rank, size in enumerate(sizes)
    ]


def storage_of(entries: list[ShardEntry], window_bytes: int, **options) -> Watched:
    files = {one.key: bytes([number]) * one.size_bytes for number, one in enumerate(entries)}
    return Watched(files, window_bytes, **options)


def read_all(storage: Watched, entries: list[ShardEntry], told: list[int]) -> list[bytes]:
    files = ShardBytes(storage, NAME, told.append)
    found = []
    for batch in files.batches(entries):
        with files.fetched(batch):
            for one in batch:
                whole = bytearray(one.size_bytes)
                half = one.size_bytes // 2
                files.fill(one, [memoryview(whole)[:half]], 0)
                files.fill(one, [memoryview(whole)[half:-1], memoryview(whole)[-1:]], half)
                found.append(bytes(whole))
    return found


@pytest.mark.parametrize("is_remote", [True, False])
def test_every_byte_arrives_and_is_told_once(is_remote):
    entries = shards(*[10] * 20)
    storage = storage_of(entries, 1000, is_remote=is_remote)
    told: list[int] = []
    assert read_all(storage, entries, told) == list(storage.files.values())
    assert sum(told) == 200
    beside = [key for key, in_main in storage.calls if not in_main]
    assert sorted(beside) == (sorted(storage.files) if is_remote else [])
    assert len(storage.calls) == (20 if is_remote else 40)


def test_batch_never_exceeds_window_or_one_file():
    files = ShardBytes(storage_of([], 100), NAME)
    sizes = [60, 40, 1, 300, 50, 50, 100]
    assert [[one.size_bytes for one in batch] for batch in files.batches(shards(*sizes))] == [
        [60, 40],
        [1],
        [300],
        [50, 50],
        [100],
    ]
    assert list(files.batches([])) == []


def test_truncated_file_is_named_and_nothing_is_kept():
    entries = shards(*[10] * 8)
    storage = storage_of(entries, 1000)
    storage.files[entries[6].key] = b"short"
    storage.files |= {NAME.commit_key: b""}
    files = ShardBytes(storage, NAME)
    with pytest.raises(CorruptCheckpointError, match=r"rank-00006/.*ends at byte 5"), files.fetched(entries):
        pass
    before = len(storage.calls)
    files.fill(entries[0], [memoryview(bytearray(10))], 0)
    assert len(storage.calls) == before + 1


def test_fetched_files_are_let_go():
    entries = shards(*[10] * 8)
    storage = storage_of(entries, 1000)
    files = ShardBytes(storage, NAME)
    with files.fetched(entries):
        files.fill(entries[0], [memoryview(bytearray(10))], 0)
    assert len(storage.calls) == len(entries)
    files.fill(entries[0], [memoryview(bytearray(10))], 0)
    assert len(storage.calls) == len(entries) + 1
