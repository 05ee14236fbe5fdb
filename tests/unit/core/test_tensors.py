import json
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from support.refusals import unrefused
from support.runs.grown import opened

from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Capture
from ckptkit.core.tensors import DTYPES, ROLES, Leaf, leaf_of
from ckptkit.format.shards import plan_shards
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage
from ckptkit.testing.state import NumpyRun


def extremes(dtype: str) -> np.ndarray:
    info = np.finfo(dtype)
    return np.array([0.0, -0.0, info.max, info.min, info.tiny, info.smallest_subnormal, np.inf, -np.inf], dtype)


ARRAYS = {
    **{code: extremes(code) for code in ("f8", "f4", "f2")},
    "f64-nan-payloads": np.array([0x7FF8000000000001, 0xFFF8DEADBEEF0001, 0x7FF0000000000001], "<u8").view("<f8"),
    "f32-nan-payloads": np.array([0x7FC00001, 0xFFC0BEEF, 0x7F800001], "<u4").view("<f4"),
    "f16-nan-payloads": np.array([0x7E01, 0xFE77, 0x7C01], "<u2").view("<f2"),
    **{code: np.array([np.iinfo(code).min, 0, 1, np.iinfo(code).max], code) for code in ("i8", "i4", "i2", "i1")},
    **{code: np.array([0, 1, np.iinfo(code).max], code) for code in ("u8", "u4", "u2", "u1")},
    "bool": np.array([True, False, True]),
    "complex": np.array([complex(-0.0, np.nan), complex(np.inf, 5e-42)], np.complex64),
    "scalar": np.array(3.5, np.float32),
    "scalar-bool": np.array(True),
    "empty": np.empty(0, np.float32),
    "empty-with-extent": np.empty((3, 0, 2), np.int64),
    "six-dimensions": np.arange(64, dtype=np.int16).reshape((2,) * 6),
    "fortran": np.asfortranarray(np.arange(12, dtype=np.float64).reshape(3, 4)),
    "strided": np.arange(24, dtype=np.float32).reshape(4, 6)[::2, 1::2],
    "broadcast": np.broadcast_to(np.float32(7), (3, 2)),
    "read-only": np.frombuffer(b"\x01\x00\x02\x00", "<u2"),
    "unaligned": np.frombuffer(b"x" + np.arange(4.0).tobytes(), np.uint8)[1:].view(np.float64),
    'name with "quotes", / and \u4e2d\u6587 \U0001f40d': np.arange(3, dtype=np.uint8),
}


class Fixed(NumpyRun):
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
    return contents, sorted(root.rglob("*.safetensors"))


def same_bits(found: np.ndarray, wanted: np.ndarray) -> bool:
    wanted = np.ascontiguousarray(wanted).reshape(wanted.shape)
    return (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


@pytest.mark.parametrize("lifetime", ["micro", "cycle", "frozen"])
def test_every_dtype_is_stored_bit_for_bit(root, lifetime):
    leaves = [leaf_of(n, a, role="weights", lifetime=lifetime) for n, a in ARRAYS.items()]
    contents, files = saved(root, *leaves)
    by_library = {name: tensor for file in files for name, tensor in load_file(file).items()}
    for name, array in ARRAYS.items():
        assert same_bits(contents.tensors[name], array), name
        assert same_bits(by_library[name], array), name
        assert contents.entries[name].role == "weights"
    assert {leaf.dtype for leaf in leaves} == set(DTYPES) - {"BF16"}  # which NumPy has not, below


def test_bfloat16_is_known_by_its_dtype_s_name(root):
    bits = np.array([0x3F80, 0x8000, 0x7FC1, 0x0001, 0xFF80], "<u2")

    class Extension(np.ndarray):
        @property
        def dtype(self):
            return SimpleNamespace(name="bfloat16", itemsize=2)

        def view(self, dtype):
            return np.asarray(np.ndarray.view(self, np.ndarray)).view(dtype)

    leaf = leaf_of("b", bits.view(Extension), role="weights")
    assert np.shares_memory(leaf.array, bits)  # referenced and never copied
    assert (leaf.dtype, leaf.shape, leaf.size_bytes) == ("BF16", (5,), 10)
    contents, files = saved(root, leaf, leaf_of("u", bits, role="weights"))
    assert (contents.entries["b"].dtype, contents.entries["u"].dtype) == ("BF16", "U16")
    assert same_bits(contents.tensors["b"], bits)
    (file,) = [path for path in files if b'"b"' in path.read_bytes()]
    with safe_open(file, "numpy") as reader:
        assert (reader.get_slice("b").get_dtype(), reader.get_slice("b").get_shape()) == ("BF16", [5])
    header, data = parsed(file.read_bytes())
    start, end = header["b"]["data_offsets"]
    assert data[start:end] == bits.tobytes()


def parsed(file: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(file[:8], "little")
    return json.loads(file[8 : 8 + length]), file[8 + length :]


def planned(leaves: list[Leaf], *shard_bytes: int):
    return plan_shards([leaf.spec for leaf in leaves], *shard_bytes)


@pytest.mark.parametrize("shard_bytes", [1, 40, 100, 300, 1 << 20])
def test_every_shard_is_valid_file_with_alignment(shard_bytes):
    """Shards are split between leaves, and only when full; roles and frozen leaves never share one."""
    shapes = [
        ("F32", (4,)),
        ("F32", (100,)),
        ("I8", (3,)),
        ("F64", (2, 2)),
        ("U16", ()),
        ("F32", (0, 3)),
        ("BOOL", (5,)),
    ]
    leaves = [
        leaf_of(f"t{place}", np.ones(shape, DTYPES[dtype]), role="weights", lifetime="cycle")
        for place, (dtype, shape) in enumerate(shapes * 2)
    ]
    arrays, shards = {leaf.name: leaf.array for leaf in leaves}, planned(leaves, shard_bytes)
    assert sorted(leaf.name for shard in shards for leaf in shard.leaves) == sorted(arrays)
    for shard in shards:
        file = shard.header + b"".join(arrays[leaf.name].tobytes() for leaf in shard.leaves)
        assert len(file) == shard.size_bytes
        header, data = parsed(file)
        end = 0
        for leaf, offset in shard.offsets_bytes():
            assert offset % DTYPES[leaf.dtype].itemsize == 0
            assert header[leaf.name]["data_offsets"] == [end, end + leaf.size_bytes]
            assert offset == len(shard.header) + end
            end += leaf.size_bytes
        assert end == len(data)
    sizes = [[leaf.size_bytes for leaf in shard.leaves] for shard in shards]
    assert all(part and (len(part) == 1 or sum(part) <= shard_bytes) for part in sizes)
    firsts = [min(shard.leaves, key=lambda leaf: int(leaf.name[1:])) for shard in shards]
    assert all(sum(part) + first.size_bytes > shard_bytes for part, first in zip(sizes, firsts[1:], strict=False))
    lifetimes = ("frozen", "cycle", "micro")
    mixed = [leaf_of(f"{role}-{of}", np.ones(2), role=role, lifetime=of) for role in ROLES[::-1] for of in lifetimes]
    for shard in planned(mixed, shard_bytes):
        assert {name.partition("-")[0] for name in (leaf.name for leaf in shard.leaves)} == {shard.role}
        assert {leaf.lifetime == "frozen" for leaf in shard.leaves} == {shard.frozen}
    places = [(shard.role, shard.frozen) for shard in planned(mixed)]
    assert places == [(role, frozen) for role in ROLES for frozen in (True, False)]


def test_unsupported_dtypes_and_duplicate_or_reserved_names_are_refused():
    arrays = [np.array([None]), np.array(["a"]), np.array([b"a"])]
    arrays += [np.zeros(1, dtype) for dtype in ("c16", np.longdouble, "f4,i4", "V2", "M8[s]", ">f8", ">i2")]
    rows = [(array, r"^layer\.w: dtype .* cannot be stored") for array in arrays]
    assert unrefused(TypeError, lambda array: leaf_of("layer.w", array, role="weights"), rows) == {}
    same = [leaf_of("same", np.ones(1), role=role) for role in ("weights", "optimizer")]
    with pytest.raises(ValueError, match=r"more than once.*'same'"):
        planned(same)
    with pytest.raises(ValueError, match="'__metadata__' is reserved"):
        planned([leaf_of("__metadata__", np.ones(1), role="weights")])
