"""Compares two checkpoints: which leaves, counters and parts of the state differ, and by how much.

Leaves in files of equal digests are equal and are not read; every file that is read is verified too, so that damage is
an error and never a difference. Each element is compared exactly once, by its bits, however each side has cut the leaf:
NaN equals itself and the two zeros differ. Memory: a few windows; a leaf that a user's cut has spread over ranks takes
twice its largest part, or all of the leaf if the other side has it in one piece. Never writes. One thread.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from ckptkit.checkpoint.open import OpenedCheckpoint
from ckptkit.checkpoint.parts import read_sharded
from ckptkit.checkpoint.read import check_sizes
from ckptkit.checkpoint.shard_bytes import ProvenFiles, ShardBytes, StoredLeaf, StoredLeaves
from ckptkit.core.contents import WantedPart
from ckptkit.core.placement import Box
from ckptkit.core.tensors import DTYPES, ROLES, Array, Role, bytes_of, values_of
from ckptkit.storage import Storage

WINDOW_BYTES = 8 << 20
"""Of a leaf, how much of each side is compared at a time."""

_FLOATS = ("F64", "F32", "F16", "BF16", "C64")
_CONTAINERS = ("$tuple", "$dict", "$ordered")
_ABSENT = "absent"
_TEXT = 60  # characters shown of a value

_LeafKey = tuple[str, int | None]
_Bits = npt.NDArray[np.unsignedinteger[npt.NBitBase]]
_Floats = npt.NDArray[np.float64]


@dataclass
class Divergence:
    """Counts by how much two tensors differ, piece by piece, so that neither has to be in memory whole."""

    elements: int = 0
    differing: int = 0  # in any bit
    first: tuple[int, ...] | None = None  # index of the first differing element met, one number per axis
    max_abs: float | None = None  # these three, of the differing ones that are finite on both sides
    max_relative: float | None = None  # to the larger of the two magnitudes
    max_ulps: int | None = None  # in representable numbers, adjacent ones being 1 apart; None for integers
    not_finite: int = 0  # how many of the differing ones are NaN or infinite on either side
    nans_a: int = 0  # including where both have them
    nans_b: int = 0

    def add(self, dtype: str, a: Array, b: Array, place: Callable[[int], tuple[int, ...]]) -> None:
        """Compare two flat pieces; ``place`` returns the index in the whole tensor of the i-th element."""
        self.elements += a.size
        if dtype in _FLOATS:
            self.nans_a += int(np.isnan(values_of(dtype, a)).sum())
            self.nans_b += int(np.isnan(values_of(dtype, b)).sum())
        where = np.flatnonzero(_bits(a) != _bits(b))
        if not where.size:
            return
        self.differing += where.size
        if self.first is None:
            self.first = place(int(where[0]))
        if dtype in _FLOATS:
            self._measure_floats(dtype, a[where], b[where])
        else:
            self._measure_integers(a[where], b[where])

    def _measure_floats(self, dtype: str, x: Array, y: Array) -> None:
        if dtype == "C64":  # compare real and imaginary parts as numbers
            x, y = x.view(np.float32), y.view(np.float32)
        values_x, values_y = (values_of(dtype, side).astype(np.float64) for side in (x, y))
        finite = np.isfinite(values_x) & np.isfinite(values_y)
        self.not_finite += int(finite.size - np.count_nonzero(finite))
        if not finite.any():
            return
        values_x, values_y = values_x[finite], values_y[finite]
        with np.errstate(over="ignore"):
            apart = np.abs(values_x - values_y)
        self._widen(apart, np.maximum(np.abs(values_x), np.abs(values_y)))
        places = [_place_in_order(side[finite]) for side in (x, y)]
        ulps = int((np.maximum(*places) - np.minimum(*places)).max())
        self.max_ulps = max(self.max_ulps or 0, ulps)

    def _measure_integers(self, x: Array, y: Array) -> None:
        if x.dtype == np.bool_:
            x, y = x.view(np.uint8), y.view(np.uint8)
        high, low = np.maximum(x, y), np.minimum(x, y)
        apart = (_bits(high) - _bits(low)).astype(np.float64)  # unsigned, so that nothing overflows
        self._widen(apart, np.maximum(np.abs(high.astype(np.float64)), np.abs(low.astype(np.float64))))

    def _widen(self, apart: _Floats, size: _Floats) -> None:
        self.max_abs = max(self.max_abs or 0.0, float(apart.max()))
        relative = np.divide(apart, size, out=np.zeros_like(apart), where=size > 0)
        self.max_relative = max(self.max_relative or 0.0, float(relative.max()))


def _bits(array: Array) -> _Bits:
    unsigned: np.dtype[np.unsignedinteger[npt.NBitBase]] = np.dtype(f"<u{array.dtype.itemsize}")
    return array.view(unsigned)


def _place_in_order(array: Array) -> _Bits:
    """Return the rank of each float in the order of all finite floats of its width."""
    bits = _bits(array)
    sign = bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))
    order: _Bits = np.where(bits & sign, ~bits, bits | sign)
    return order


Kind = Literal["only in a", "only in b", "form", "value"]  # form: the values cannot be compared


@dataclass(frozen=True)
class LeafDifference:
    """Describes a leaf that differs between the two sides."""

    name: str
    rank: int | None  # that owns it in a job of many ranks; None if ranks share it, or there is one rank
    role: Role
    kind: Kind
    form_a: str | None  # dtype and shape; None if it is missing there
    form_b: str | None
    divergence: Divergence | None = None


@dataclass(frozen=True)
class StateDifference:
    """Describes a place at which the state of a rank differs, with both values as shortened JSON, or ``absent``."""

    rank: int
    path: str  # section, then keys and indices, joined by slashes
    a: str
    b: str


@dataclass
class RoleCount:
    """Counts how the leaves of a role compare."""

    equal: int = 0
    differing: int = 0
    only_in_a: int = 0
    only_in_b: int = 0


@dataclass(frozen=True)
class CheckpointDifference:
    """Holds everything that differs."""

    progress: dict[str, tuple[int, int]]  # counters
    ranks: tuple[int, int]  # of the jobs that wrote the two
    roles: dict[str, RoleCount]
    leaves: tuple[LeafDifference, ...]  # first those that cannot be compared, then in the order of their files
    state: tuple[StateDifference, ...]  # of ranks that both sides have
    suspicion: str | None  # why one of the two seems to hold a stale state

    @property
    def is_empty(self) -> bool:
        return not (self.progress or self.leaves or self.state) and self.ranks[0] == self.ranks[1]


class Side:
    """Reads one of the two checkpoints; ``report`` is called with the number of bytes just read.

    Raises CheckpointNotFoundError if it was removed meanwhile, and CorruptCheckpointError if a file is missing or of
    another size.
    """

    def __init__(self, storage: Storage, opened: OpenedCheckpoint, report: Callable[[int], None]) -> None:
        check_sizes(storage, opened)  # before memory is allocated
        self.opened = opened
        self.files = ProvenFiles(storage, opened.name, report)  # must be ended after the last read
        self._cut_files = ShardBytes(storage, opened.name, report)

    def leaves(self) -> dict[_LeafKey, StoredLeaf]:
        """Return the leaves, in the order of the files."""
        ranks = self.opened.ranks
        stored = StoredLeaves(ranks)
        leaves: dict[_LeafKey, StoredLeaf] = {}
        for document in ranks:
            of_rank = stored.of_rank(document.rank)
            for shard in document.shards:
                for entry in shard.tensors:
                    own = document.rank if entry.placement == "per_rank" and len(ranks) > 1 else None
                    leaves.setdefault((entry.name, own), of_rank[entry.name])
        return leaves

    def run(self, leaf: StoredLeaf, start_bytes: int, into: memoryview) -> None:
        """Fill ``into`` with the bytes of a leaf that is not cut by a user, from ``start_bytes`` on."""
        end_bytes = start_bytes + len(into)
        for piece in leaf.pieces:
            first = max(start_bytes, piece.start_bytes)
            last = min(end_bytes, piece.start_bytes + piece.entry.size_bytes)
            if first < last:
                at = piece.entry.offset_bytes + first - piece.start_bytes
                self.files.read(piece.shard, at, into[first - start_bytes : last - start_bytes])

    def whole(self, leaf: StoredLeaf) -> Array | None:
        """Return the whole leaf, unless this side has cut it."""
        if leaf.info.placement == "sharded":
            return None
        whole = leaf.info.empty()
        self.run(leaf, 0, bytes_of(whole).data)
        return whole

    def box(self, leaf: StoredLeaf, box: Box, shape: tuple[int, ...]) -> Array:
        """Return a part of a leaf that is cut by a user; its blocks are verified."""
        part = np.empty(shape, DTYPES[leaf.info.dtype])
        read_sharded(self._cut_files, {"leaf": leaf}, [WantedPart("leaf", box, shape, bytes_of(part).data)], None)
        return part


def compare(a: Side, b: Side, plan: Callable[[int], None]) -> CheckpointDifference:
    """Compare two checkpoints; ``plan`` is called once with the number of bytes that will be read.

    Raises CheckpointNotFoundError if one was removed meanwhile, and CorruptCheckpointError, which names the file, if
    one is damaged.
    """
    leaves_a, leaves_b = a.leaves(), b.leaves()
    both = [key for key in leaves_a if key in leaves_b]
    unlike = [key for key in both if _form(leaves_a[key]) != _form(leaves_b[key])]
    alike = [key for key in both if _form(leaves_a[key]) == _form(leaves_b[key])]
    pairs = [key for key in alike if _places(leaves_a[key]) != _places(leaves_b[key])]  # others are in equal files
    plan(_file_bytes(leaves_a[key] for key in pairs) + _file_bytes(leaves_b[key] for key in pairs))
    leaves = [_unlike(key, leaves_a[key], leaves_b[key], "form") for key in unlike]
    leaves += [_unlike(key, leaf, None, "only in a") for key, leaf in leaves_a.items() if key not in leaves_b]
    leaves += [_unlike(key, None, leaf, "only in b") for key, leaf in leaves_b.items() if key not in leaves_a]
    for key in pairs:
        divergence = _divergence((a, leaves_a[key]), (b, leaves_b[key]))
        if divergence.differing:
            leaves.append(
                dataclasses.replace(_unlike(key, leaves_a[key], leaves_b[key], "value"), divergence=divergence)
            )
    a.files.end()
    b.files.end()
    roles = _counted(leaves_a, leaves_b, leaves)
    before, after = dataclasses.asdict(a.opened.manifest.progress), dataclasses.asdict(b.opened.manifest.progress)
    progress = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    state = [
        difference
        for rank, (mine, its) in enumerate(zip(a.opened.ranks, b.opened.ranks, strict=False))
        for difference in state_differences(rank, mine.state, its.state)
    ]
    ranks = (len(a.opened.ranks), len(b.opened.ranks))
    return CheckpointDifference(progress, ranks, roles, tuple(leaves), tuple(state), _suspicion(progress, roles))


def _divergence(*sides: tuple[Side, StoredLeaf]) -> Divergence:
    info = sides[0][1].info
    total = Divergence()
    if any(leaf.info.placement == "sharded" for _, leaf in sides):
        wholes = [side.whole(leaf) for side, leaf in sides]
        for box, shape in _boxes([leaf for _, leaf in sides]):
            corner = tuple(slice(at, at + size) for at, size in zip(box.offsets, shape, strict=True))
            a, b = (
                np.ascontiguousarray(whole[corner]) if whole is not None else side.box(leaf, box, shape)
                for whole, (side, leaf) in zip(wholes, sides, strict=True)
            )

            def place_in_box(at: int, box: Box = box, shape: tuple[int, ...] = shape) -> tuple[int, ...]:
                return tuple(inside + offset for inside, offset in zip(_index(shape, 0, at), box.offsets, strict=True))

            total.add(info.dtype, a.reshape(-1), b.reshape(-1), place_in_box)
        return total
    dtype = DTYPES[info.dtype]
    elements = math.prod(info.shape)
    step = max(1, min(elements, WINDOW_BYTES // dtype.itemsize))
    memory = [np.empty(step, dtype) for _ in sides]
    for first in range(0, elements, step):
        a, b = (window[: min(step, elements - first)] for window in memory)
        for (side, leaf), part in zip(sides, (a, b), strict=True):
            side.run(leaf, first * dtype.itemsize, bytes_of(part).data)
        total.add(info.dtype, a, b, functools.partial(_index, info.shape, first))
    return total


def _boxes(leaves: Iterable[StoredLeaf]) -> Iterator[tuple[Box, tuple[int, ...]]]:
    """Yield the parts of the side that is cut; if both are, of the one with more parts."""
    cut = [leaf for leaf in leaves if leaf.info.placement == "sharded"]
    for piece in max(cut, key=lambda leaf: len(leaf.pieces)).pieces:
        part = piece.entry.part
        if part is not None and piece.entry.size_bytes:
            yield Box(tuple(part.global_shape), tuple(part.offsets)), tuple(piece.entry.shape)


def _index(shape: tuple[int, ...], first: int, at: int) -> tuple[int, ...]:
    return tuple(int(axis) for axis in np.unravel_index(first + at, shape))


def _places(leaf: StoredLeaf) -> set[tuple[object, ...]]:
    return {
        (
            piece.shard.digest,
            piece.shard.size_bytes,
            piece.entry.offset_bytes,
            tuple(piece.entry.shape),
            None if piece.entry.part is None else tuple(piece.entry.part.offsets),
        )
        for piece in leaf.pieces
    }


def _form(leaf: StoredLeaf) -> tuple[str, str]:
    return leaf.info.role, _shown_form(leaf)


def _shown_form(leaf: StoredLeaf) -> str:
    return f"{leaf.info.dtype} {list(leaf.info.shape)}"


def _file_bytes(leaves: Iterable[StoredLeaf]) -> int:
    return sum({piece.shard.key: piece.shard.size_bytes for leaf in leaves for piece in leaf.pieces}.values())


def _unlike(key: _LeafKey, leaf_a: StoredLeaf | None, leaf_b: StoredLeaf | None, kind: Kind) -> LeafDifference:
    role = next(leaf.info.role for leaf in (leaf_a, leaf_b) if leaf is not None)
    form_a, form_b = (_shown_form(leaf) if leaf is not None else None for leaf in (leaf_a, leaf_b))
    return LeafDifference(*key, role, kind, form_a, form_b)


def _counted(
    leaves_a: dict[_LeafKey, StoredLeaf], leaves_b: dict[_LeafKey, StoredLeaf], leaves: Iterable[LeafDifference]
) -> dict[str, RoleCount]:
    roles: dict[str, RoleCount] = {role: RoleCount() for role in ROLES}
    for key in leaves_a:
        roles[leaves_a[key].info.role].equal += key in leaves_b
    for leaf in leaves:
        count = roles[leaf.role]
        count.only_in_a += leaf.kind == "only in a"
        count.only_in_b += leaf.kind == "only in b"
        if leaf.kind in ("form", "value"):
            count.differing += 1
            count.equal -= 1
    return {role: count for role, count in roles.items() if count != RoleCount()}


def _suspicion(progress: dict[str, tuple[int, int]], roles: dict[str, RoleCount]) -> str | None:
    """Explain weights that no update changed, if so. NaN counts as equal to itself here."""
    weights = roles.get("weights")
    if "updates" not in progress or weights is None or not _is_equal(weights):
        return None
    before, after = progress["updates"]
    moments = roles.get("optimizer", RoleCount())
    leaves = moments.equal + moments.differing
    if not leaves:
        also = ""
    elif _is_equal(moments):
        also = ", and so is all of the optimizer's state"
    else:
        also = f"; of the optimizer's leaves, {moments.differing} of {leaves} differ"
    return (
        f"{abs(after - before)} updates lie between the two, and all {weights.equal} weights are equal to the bit"
        f"{also}. Unless the learning rate was 0 all the time, one of them was saved with stale weights: do not trust "
        "what was trained from it."
    )


def _is_equal(count: RoleCount) -> bool:
    return dataclasses.replace(count, equal=0) == RoleCount() and count.equal > 0


def in_order_of_size(leaves: Iterable[LeafDifference]) -> list[LeafDifference]:
    """Sort: those that cannot be compared first, then by relative difference and differing share, largest first."""

    def rank(leaf: LeafDifference) -> tuple[bool, float, float]:
        if leaf.divergence is None:
            return (False, 0.0, 0.0)
        share = leaf.divergence.differing / leaf.divergence.elements
        return (True, -(leaf.divergence.max_relative or 0.0), -share)

    return sorted(leaves, key=rank)


def state_differences(rank: int, a: Mapping[str, JsonValue], b: Mapping[str, JsonValue]) -> Iterator[StateDifference]:
    """Yield the places at which two states differ, as `ckptkit.core.state_encoding` has encoded them.

    A list of plain values has one entry in all. Tensors that a state refers to are compared as leaves.
    """
    for path, value_a, value_b in _between("", dict(a), dict(b)):
        yield StateDifference(rank, path, value_a, value_b)


def _between(path: str, a: JsonValue, b: JsonValue) -> Iterator[tuple[str, str, str]]:
    if json.dumps(a) == json.dumps(b):  # in Python, 1 equals 1.0 and True
        return
    if isinstance(a, list) and isinstance(b, list):
        yield from _in_list(path, a, b)
        return
    if not (isinstance(a, dict) and isinstance(b, dict) and _tag(a) == _tag(b)):
        yield path, _shown(a), _shown(b)
        return
    tag = _tag(a)
    if tag in _CONTAINERS:
        yield from _between(path, a[tag], b[tag])
    elif tag is not None:
        yield path, _shown(a), _shown(b)
    else:
        for key in dict.fromkeys([*a, *b]):
            below = f"{path}/{key}" if path else key
            if key in a and key in b:
                yield from _between(below, a[key], b[key])
            else:
                yield below, _shown(a[key]) if key in a else _ABSENT, _shown(b[key]) if key in b else _ABSENT


def _in_list(path: str, a: list[JsonValue], b: list[JsonValue]) -> Iterator[tuple[str, str, str]]:
    if len(a) != len(b):
        yield path, f"{len(a)} elements", f"{len(b)} elements"
        return
    differing = [at for at in range(len(a)) if json.dumps(a[at]) != json.dumps(b[at])]
    if len(differing) > 1 and not any(isinstance(item, dict | list) for item in (*a, *b)):
        what = f"{len(differing)} of {len(a)} elements differ, the first at {differing[0]}"
        yield path, f"{what}: {_shown(a[differing[0]])}", _shown(b[differing[0]])
        return
    for at in differing:
        yield from _between(f"{path}/{at}", a[at], b[at])


def _tag(value: Mapping[str, JsonValue]) -> str | None:
    return next((key for key in value if key.startswith("$")), None) if len(value) == 1 else None


def _shown(value: JsonValue) -> str:
    text = json.dumps(value)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."
