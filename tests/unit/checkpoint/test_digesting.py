"""A shard is digested as it was given, whatever the size of the pieces, and so is each leaf of it."""

import io

import numpy as np
import pytest

from ckptkit.checkpoint.write import PIECE_BYTES, DigestingStream, FrozenShards, LeafDigests
from ckptkit.core.contents import Capture
from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import leaf_of
from ckptkit.errors import StateMismatchError
from ckptkit.format.documents import AttemptDocument, digest_of
from ckptkit.format.shards import plan_shards
from ckptkit.snapshot import Handling, StagingArea
from ckptkit.storage import LocalStorage
from ckptkit.testing.state import NumpyRun


def leaves_of(*sizes, lifetime="micro"):
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 255, size, dtype=np.uint8) for size in sizes]
    return [leaf_of(f"leaf{n}", one, role="weights", lifetime=lifetime) for n, one in enumerate(arrays)]


def test_leaves_in_any_pieces():
    large = ((9 << 20) + 3, 1, PIECE_BYTES, 3 * PIECE_BYTES + 1)
    rows = [(sizes, asked) for sizes in ((0,), (1, 0, 5), (4096, 4097, 3), (0, 0, 1, 0)) for asked in (1, 7, 4096)]
    for sizes, asked in (*rows, *((large, asked) for asked in (4096, PIECE_BYTES - 1, PIECE_BYTES + 1, 64 << 20))):
        leaves = leaves_of(*sizes)
        (shard,) = plan_shards([leaf.spec for leaf in leaves])
        arrays = {leaf.name: leaf.array for leaf in leaves}
        file = shard.header + b"".join(arrays[leaf.name].tobytes() for leaf in shard.leaves)
        digests = LeafDigests(shard)
        stream = DigestingStream(io.BytesIO(file), leaves=digests)
        given, buffer = bytearray(), bytearray(asked)
        while count := stream.readinto(memoryview(buffer)):
            given += buffer[:count]
            assert count == asked or len(given) == len(file)
        assert given == file, (sizes, asked)
        assert stream.digest() == digest_of(file)
        assert digests.by_name == {leaf.name: digest_of(leaf.array.tobytes()) for leaf in leaves}
        assert stream.readinto(memoryview(buffer)) == 0


def test_frozen_leaf_changed_while_written_is_demoted(tmp_path):
    """It changes between its name, which is its digest, and its bytes, or before both; the save is refused."""
    leaves = leaves_of(2 << 20, 100, lifetime="frozen")

    class Changing(LocalStorage):
        changed = 0

        def write(self, key, stream, size_bytes):
            leaves[self.changed].array[99_999 % leaves[self.changed].array.size] ^= 1
            self.changed += 1
            super().write(key, stream, size_bytes)

    attempt = AttemptDocument(attempt=1, token="0" * 32, parent=None, host="h", created_at="now")
    frozen = FrozenShards(storage := Changing(tmp_path), attempt, lambda: None)
    capture = Capture(NumpyRun().progress(), tuple(leaves), {})
    for number, demoted in enumerate([{"leaf0"}, {"leaf0", "leaf1"}]):
        with pytest.raises(StateMismatchError, match=f"declared frozen: leaf{number}\\."):
            frozen.share(StagingArea().open(capture, SaveCost(), Handling()), 0)
        assert (storage.changed, frozen.demoted) == (number + 1, demoted)
    assert not frozen.settled
    frozen = FrozenShards(LocalStorage(tmp_path), attempt, lambda: None)
    window = StagingArea().open(capture, SaveCost(), Handling())
    leaves[0].array[0] ^= 1  # before the writer has read a byte
    with pytest.raises(StateMismatchError, match="declared frozen: leaf0\\."):
        frozen.share(window, 0)
    assert frozen.demoted == {"leaf0"}


def test_exhausting_takes_memory_of_its_size():
    """Beside each save, for as many saves as there are: pieces of 4 MiB left holes of that size in the memory."""

    class Asked(io.BytesIO):
        def readinto(self, buffer):
            asked.append(len(buffer))
            return super().readinto(buffer)

    for size in (0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1):
        data, asked = np.arange(size, dtype=np.uint8).tobytes(), []
        assert DigestingStream(Asked(data)).exhaust(size) == digest_of(data)
        assert max(asked) <= min(size + 1, PIECE_BYTES)
        DigestingStream(Asked(data)).readinto(memoryview(bytearray(2 * PIECE_BYTES)))
        assert max(asked) <= PIECE_BYTES  # each takes the interpreter lock, which training needs, too
    buffer = bytearray(b"." * 8)
    assert DigestingStream(io.BytesIO(b"12345")).readinto(memoryview(buffer)) == 5
    assert buffer == b"12345..."  # the rest is unchanged
