"""`ShardStream` gives a shard's very bytes, however it is asked, and digests what it gave."""

import numpy as np
import pytest

from ckptkit.errors import StorageError
from ckptkit.manifest import AttemptDocument, digest_of
from ckptkit.run.frozen import FrozenShards
from ckptkit.run.shard_stream import PIECE_BYTES, ShardStream
from ckptkit.storage import LocalStorage
from ckptkit.tensors import into_shards, leaf_of


def shard_of(*sizes, lifetime="micro"):
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 255, size, dtype=np.uint8) for size in sizes]
    (shard,) = into_shards(
        [leaf_of(f"leaf{n}", one, role="weights", lifetime=lifetime) for n, one in enumerate(arrays)]
    )
    return shard


def file_of(shard) -> bytes:
    return b"".join(shard.chunks())


@pytest.mark.parametrize("asked", [1, 7, 4096, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 8 << 20])
@pytest.mark.parametrize("sizes", [(0,), (1, 0, 5), (4096, 4097, 3)])
def test_small_leaves_come_whole_in_any_pieces(asked, sizes):
    check(shard_of(*sizes), asked)


@pytest.mark.parametrize("asked", [4096, PIECE_BYTES - 1, PIECE_BYTES + 1, 4 << 20, 64 << 20])
def test_large_leaves_come_whole_in_any_pieces(asked):
    check(shard_of((9 << 20) + 3, 1, PIECE_BYTES, 3 * PIECE_BYTES + 1), asked)


def check(shard, asked):
    stream = ShardStream(shard)
    given = bytearray()
    buffer = bytearray(asked)
    while count := stream.readinto(memoryview(buffer)):
        given += buffer[:count]
        assert count == asked or len(given) == shard.size_bytes
    assert given == file_of(shard)
    assert stream.digest() == digest_of(file_of(shard))
    assert stream.readinto(memoryview(buffer)) == 0


def test_the_rest_of_the_last_buffer_is_left_alone():
    shard = shard_of(5)
    buffer = bytearray(b"." * (shard.size_bytes + 3))
    assert ShardStream(shard).readinto(memoryview(buffer)) == shard.size_bytes
    assert buffer == file_of(shard) + b"..."


def test_the_digest_is_of_what_was_given_and_not_of_what_became_of_it(tmp_path):
    shard = shard_of(100, 2 << 20)
    stream = ShardStream(shard)
    buffer = bytearray(shard.size_bytes)
    stream.readinto(memoryview(buffer))
    shard.leaves[0].array[:] ^= 1
    assert stream.digest() == digest_of(bytes(buffer)) != digest_of(file_of(shard))


def test_a_shard_that_is_written_lies_there_with_that_digest(tmp_path):
    shard = shard_of(100, 9 << 20, 5)
    stream = ShardStream(shard)
    storage = LocalStorage(tmp_path)
    storage.write("a/1", stream, shard.size_bytes)
    assert digest_of((tmp_path / "a" / "1").read_bytes()) == stream.digest() == digest_of(file_of(shard))


def test_a_stream_that_gave_all_gives_no_file_more(tmp_path):
    shard = shard_of(100)
    stream = ShardStream(shard)
    LocalStorage(tmp_path).write("a/1", stream, shard.size_bytes)
    with pytest.raises(StorageError, match="announced"):
        LocalStorage(tmp_path).write("a/2", stream, shard.size_bytes)


def test_a_frozen_shard_that_changes_between_its_name_and_its_bytes_is_refused_and_written_anew(tmp_path):
    shard = shard_of(2 << 20, lifetime="frozen")

    class Changing(LocalStorage):
        changes = 1

        def write(self, key, stream, size_bytes):
            shard.leaves[0].array[:1] ^= self.changes
            super().write(key, stream, size_bytes)

    storage = Changing(tmp_path)
    attempt = AttemptDocument(attempt=1, token="0" * 32, parent=None, host="h", created_at="now")
    frozen = FrozenShards(storage, attempt)
    before = file_of(shard)
    with pytest.raises(ValueError, match="changed by training"):
        frozen.share(shard)
    shard.leaves[0].array[:1] ^= 1
    storage.changes = 0
    key, digest = frozen.share(shard)
    assert digest == digest_of(before)
    assert (tmp_path / key).read_bytes() == before
