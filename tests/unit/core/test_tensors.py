from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file
from support.refusals import unrefused
from support.runs.grown import opened

from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Capture
from ckptkit.core.tensors import DTYPES, ROLES, Leaf, bytes_of, leaf_of
from ckptkit.format.shards import plan_shards
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage
from ckptkit.testing.state import NumpyRun

NAN_F64 = np.array([0x7FF8000000000001, 0xFFF8DEADBEEF0001, 0x7FF0000000000001], "<u8").view("<f8")
NAN_F32 = np.array([0x7FC00001, 0xFFC0BEEF, 0x7F800001], "<u4").view("<f4")
NAN_F16 = np.array([0x7E01, 0xFE77, 0x7C01], "<u2").view("<f2")


def extremes(dtype: str) -> np.ndarray:
    info = np.finfo(dtype)
    return np.array([0.0, -0.0, info.max, info.min, info.tiny, info.smallest_subnormal, np.inf, -np.inf], dtype)


ARRAYS = {
    "f64": extremes("f8"),
    "f32": extremes("f4"),
    "f16": extremes("f2"),
    "f64-nan-payloads": NAN_F64,
    "f32-nan-payloads": NAN_F32,
    "f16-nan-payloads": NAN_F16,
    **{code: np.array([np.iinfo(code).min, 0, 1, np.iinfo(code).max], code) for code in ("i8", "i4", "i2", "i1")},
    **{code: np.array([0, 1, np.iinfo(code).max], code) for code in ("u8", "u4", "u2", "u1")},
    "longlong": np.array([-1, 1], np.longlong),
    "bool": np.array([True, False, True]),
    "complex": np.array([complex(-0.0, np.nan), complex(np.inf, 5e-42)], np.complex64),
    "scalar": np.array(3.5, np.float32),
    "scalar-bool": np.array(True),
    "one": np.ones(1, np.float16),
    "empty": np.empty(0, np.float32),
    "empty-with-extent": np.empty((3, 0, 2), np.int64),
    "six-dimensions": np.arange(64, dtype=np.int16).reshape((2,) * 6),
    "fortran": np.asfortranarray(np.arange(12, dtype=np.float64).reshape(3, 4)),
    "strided": np.arange(24, dtype=np.float32).reshape(4, 6)[::2, 1::2],
    "reversed": np.arange(5, dtype=np.int32)[::-1],
    "broadcast": np.broadcast_to(np.float32(7), (3, 2)),
    "read-only": np.frombuffer(b"\x01\x00\x02\x00", "<u2"),
    "unaligned": np.frombuffer(b"x" + np.arange(4.0).tobytes(), np.uint8)[1:].view(np.float64),
    'name with "quotes", / and \u4e2d\u6587 \U0001f40d': np.arange(3, dtype=np.uint8),
}


class Fixed(NumpyRun):
    """Captures the given leaves besides its own."""

    def __init__(self, *leaves: Leaf) -> None:
        super().__init__()
        self._more = leaves

    def capture(self) -> Capture:
        capture = super().capture()
        return Capture(capture.progress, (*capture.leaves, *self._more), capture.state)


def saved(root, *leaves):
    """Write ``leaves`` with everything that a save goes through; returns the verified contents and the files."""
    with CheckpointManager(root) as manager:
        state = Fixed(*leaves)
        manager.restore(state)
        name = manager.save(state).result()
    contents = load(storage := LocalStorage(root), opened(storage, name))
    return contents, sorted((root / "checkpoints" / name).rglob("*.safetensors")) + sorted(
        (root / "frozen").rglob("*.safetensors")
    )


def same_bits(found: np.ndarray, wanted: np.ndarray) -> bool:
    wanted = np.ascontiguousarray(wanted).reshape(wanted.shape)
    return (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


@pytest.mark.parametrize("lifetime", ["micro", "cycle", "frozen"])
def test_every_dtype_is_stored_bit_for_bit(root, lifetime):
    """This holds for ckptkit's reader and for that of safetensors."""
    leaves = [leaf_of(n, a, role="weights", lifetime=lifetime) for n, a in ARRAYS.items()]
    contents, files = saved(root, *leaves)
    by_library = {name: tensor for file in files for name, tensor in load_file(file).items()}
    for name, array in ARRAYS.items():
        assert same_bits(contents.tensors[name], array), name
        assert same_bits(by_library[name], array), name
        assert contents.entries[name].role == "weights"
    assert {leaf.dtype for leaf in leaves} == set(DTYPES) - {"BF16"}  # which NumPy has not, below


def test_bfloat16_is_known_by_its_dtype_s_name(root):
    """NumPy has no bfloat16 of its own; an extension type is 16 bits wide and so named."""
    bits = np.array([0x3F80, 0x8000, 0x7FC1, 0x0001, 0xFF80], "<u2")

    class Extension(np.ndarray):
        @property
        def dtype(self):
            return SimpleNamespace(name="bfloat16", itemsize=2)

        def view(self, dtype):
            return np.asarray(np.ndarray.view(self, np.ndarray)).view(dtype)

    leaf = leaf_of("b", bits.view(Extension), role="weights")
    assert (leaf.dtype, leaf.shape, leaf.size_bytes) == ("BF16", (5,), 10)
    contents, files = saved(root, leaf, leaf_of("u", bits, role="weights"))
    assert (contents.entries["b"].dtype, contents.entries["u"].dtype) == ("BF16", "U16")
    assert same_bits(contents.tensors["b"], bits)
    (file,) = [one for one in files if b'"b"' in one.read_bytes()]
    with safe_open(file, "numpy") as reader:
        assert reader.get_slice("b").get_dtype() == "BF16"
        assert reader.get_slice("b").get_shape() == [5]
    header, data = parsed(file.read_bytes())
    start, end = header["b"]["data_offsets"]
    assert data[start:end] == bits.tobytes()


def test_unsupported_dtype_is_refused_by_name():
    arrays = [np.array([None]), np.array(["a"]), np.array([b"a"])]
    arrays += [np.zeros(1, dtype) for dtype in ("c16", np.longdouble, "f4,i4", "V2", "M8[s]", ">f8", ">i2")]
    rows = [(array, r"^layer\.w: dtype .* cannot be stored") for array in arrays]
    assert unrefused(TypeError, lambda array: leaf_of("layer.w", array, role="weights"), rows) == {}


def test_a_contiguous_array_is_referenced_and_never_copied():
    array = np.zeros(4, np.float32)
    leaf = leaf_of("w", array, role="weights")
    array[2] = 1
    assert bytes_of(leaf.array).tobytes() == array.tobytes()


def parsed(file: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(file[:8], "little")
    return json.loads(file[8 : 8 + length]), file[8 + length :]


NAMED = st.lists(
    st.tuples(st.sampled_from([d for d in DTYPES if d != "BF16"]), st.lists(st.integers(0, 4), max_size=3)),
    max_size=9,
)


def leaves_of(specification) -> list[Leaf]:
    generator = np.random.default_rng(1)
    leaves = []
    for place, (dtype, shape) in enumerate(specification):
        size = math.prod(shape) * DTYPES[dtype].itemsize
        array = generator.integers(0, 2, size, np.uint8).view(DTYPES[dtype]).reshape(shape)
        leaves.append(leaf_of(f"t{place}", array, role="weights", lifetime="cycle"))
    return leaves


def planned(leaves: list[Leaf], *shard_bytes: int):
    return plan_shards([leaf.spec for leaf in leaves], *shard_bytes)


@given(NAMED, st.integers(1, 300))
def test_every_shard_is_valid_file_with_alignment(specification, shard_bytes):
    """Shards are split between leaves, and only when full."""
    leaves = leaves_of(specification)
    arrays = {leaf.name: leaf.array for leaf in leaves}
    shards = planned(leaves, shard_bytes)
    assert sorted(leaf.name for shard in shards for leaf in shard.leaves) == sorted(leaf.name for leaf in leaves)
    for shard in shards:
        file = shard.header + b"".join(arrays[leaf.name].tobytes() for leaf in shard.leaves)
        assert len(file) == shard.size_bytes
        assert len(shard.header) % 8 == 0
        header, data = parsed(file)
        end = 0
        for leaf, offset in shard.offsets_bytes():
            assert offset % DTYPES[leaf.dtype].itemsize == 0
            assert header[leaf.name]["data_offsets"] == [end, end + leaf.size_bytes]
            assert offset == len(shard.header) + end
            assert file[offset : offset + leaf.size_bytes] == arrays[leaf.name].tobytes()
            end += leaf.size_bytes
        assert end == len(data)
    sizes = [[leaf.size_bytes for leaf in shard.leaves] for shard in shards]
    assert all(part and (len(part) == 1 or sum(part) <= shard_bytes) for part in sizes)
    firsts = [min(shard.leaves, key=lambda leaf: int(leaf.name[1:])) for shard in shards]
    for part, following in zip(sizes, firsts[1:], strict=False):
        assert sum(part) + following.size_bytes > shard_bytes


def test_plans_of_leaves():
    """An oversized leaf gets its own shard; roles and frozen leaves never share a file; no leaves, no shards."""
    large = leaves_of([("F32", [4]), ("F32", [100]), ("F32", [4])])
    assert [[leaf.name for leaf in shard.leaves] for shard in planned(large, 64)] == [["t0"], ["t1"], ["t2"]]
    leaves = [
        leaf_of(f"{role}-{lifetime}", np.ones(2, np.float32), role=role, lifetime=lifetime)
        for role in reversed(ROLES)
        for lifetime in ("frozen", "cycle", "micro")
    ]
    assert [(shard.role, shard.frozen, sorted(leaf.name for leaf in shard.leaves)) for shard in planned(leaves)] == [
        (role, frozen, [f"{role}-frozen"] if frozen else [f"{role}-cycle", f"{role}-micro"])
        for role in ROLES
        for frozen in (True, False)
    ]
    assert planned([]) == []


def test_duplicate_and_reserved_names_are_refused():
    same = [leaf_of("same", np.ones(1), role=role) for role in ("weights", "optimizer")]
    with pytest.raises(ValueError, match=r"more than once.*'same'"):
        planned(same)
    with pytest.raises(ValueError, match="'__metadata__' is reserved"):
        planned([leaf_of("__metadata__", np.ones(1), role="weights")])
