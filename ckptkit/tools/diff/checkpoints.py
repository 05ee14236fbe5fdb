"""Compares two checkpoints: which leaves, counters and parts of the state differ, and by how much.

Guarantees: leaves in files of equal digests are equal and are not read; every file that is read is verified too, so
that damage is an error and never a difference; parts stored by several ranks are joined by their offsets. Memory: a few
windows. A leaf that a user's cut has spread over ranks takes twice its largest part, or all of the leaf if the other
side has it in one piece. Reads and never writes. One thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from ckptkit.checkpoint.leaves import StoredLeaf, StoredLeaves
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import ROLES, Role
from ckptkit.format.documents import TensorEntry
from ckptkit.tools.diff.leaf import LeafPair, Side
from ckptkit.tools.diff.state import StateDifference, state_differences
from ckptkit.tools.diff.statistics import Divergence

Kind = Literal["only in a", "only in b", "form", "value"]


@dataclass(frozen=True)
class LeafDifference:
    """Describes a leaf that differs between the two sides.

    Attributes:
        name: Name of the leaf.
        rank: The rank that owns it in a job of many ranks; None if ranks share it, or there is one rank.
        role: Its role on the first side, or on the only one.
        kind: ``form``: the dtype, shape or role differs, so values cannot be compared.
        form_a: dtype and shape on the first side; None if it is missing there.
        form_b: The same for the second side.
        divergence: By how much it differs, if the kind is ``value``.
    """

    name: str
    rank: int | None
    role: Role
    kind: Kind
    form_a: str | None
    form_b: str | None
    divergence: Divergence | None = None


@dataclass
class RoleCount:
    """Counts how the leaves of a role compare."""

    equal: int = 0
    differing: int = 0
    only_in_a: int = 0
    only_in_b: int = 0


@dataclass(frozen=True)
class Difference:
    """Holds everything that differs.

    Attributes:
        progress: Counters that differ, by name: on the first side and on the second.
        ranks: Number of ranks of the jobs that wrote the two.
        roles: Counts of leaves; a role that neither side has is left out.
        leaves: Leaves that differ; those that cannot be compared come first, the rest in the order of their files.
        state: Other differences, of ranks that both sides have.
        suspicion: Why one of the two seems to hold a stale state; None if neither does.
    """

    progress: dict[str, tuple[int, int]]
    ranks: tuple[int, int]
    roles: dict[str, RoleCount]
    leaves: tuple[LeafDifference, ...]
    state: tuple[StateDifference, ...]
    suspicion: str | None

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs."""
        return not (self.progress or self.leaves or self.state) and self.ranks[0] == self.ranks[1]


_LeafKey = tuple[str, int | None]


def compare(a: Side, b: Side, plan: Callable[[int], None]) -> Difference:
    """Compare two checkpoints.

    Args:
        a: The first one, opened.
        b: The second one.
        plan: Called once with the number of bytes that will be read, according to the tables.

    Raises:
        CheckpointNotFoundError: If one of them was removed meanwhile.
        CorruptCheckpointError: If a file of one of them is missing or altered; names it.
        StorageError: If a storage failed.
    """
    one, other = _leaves(a), _leaves(b)
    changed = [key for key in one if key in other and not _is_in_equal_files(one[key], other[key])]
    pairs = [key for key in changed if _form(one[key]) == _form(other[key])]
    plan(_file_bytes(one[key] for key in pairs) + _file_bytes(other[key] for key in pairs))
    found = [difference for key in pairs if (difference := _compared(a, b, key, one[key], other[key])) is not None]
    a.files.end()
    b.files.end()
    comparable = set(pairs)
    unlike = [_unlike(key, one[key], other[key], "form") for key in changed if key not in comparable]
    unlike += [_unlike(key, one[key], None, "only in a") for key in one if key not in other]
    unlike += [_unlike(key, None, other[key], "only in b") for key in other if key not in one]
    leaves = (*unlike, *found)
    roles = _counted(one, other, leaves)
    progress = _progress(a.opened.manifest.progress, b.opened.manifest.progress)
    state = [
        difference
        for rank, (mine, its) in enumerate(zip(a.opened.ranks, b.opened.ranks, strict=False))
        for difference in state_differences(rank, mine.state, its.state)
    ]
    ranks = (len(a.opened.ranks), len(b.opened.ranks))
    return Difference(progress, ranks, roles, leaves, tuple(state), _suspicion(progress, roles))


def _leaves(side: Side) -> dict[_LeafKey, StoredLeaf]:
    """Return the leaves, in the order of the files."""
    ranks = side.opened.ranks
    stored = StoredLeaves(ranks)
    found: dict[_LeafKey, StoredLeaf] = {}
    for document in ranks:
        of_rank = stored.of_rank(document.rank)
        for shard in document.shards:
            for entry in shard.tensors:
                own = document.rank if entry.placement == "per_rank" and len(ranks) > 1 else None
                found.setdefault((entry.name, own), of_rank[entry.name])
    return found


def _is_in_equal_files(a: StoredLeaf, b: StoredLeaf) -> bool:
    if _form(a) != _form(b):
        return False
    return {_where(a, at) for at in range(len(a.pieces))} == {_where(b, at) for at in range(len(b.pieces))}


def _where(leaf: StoredLeaf, at: int) -> tuple[object, ...]:
    shard, entry = leaf.pieces[at]
    return shard.digest, shard.size_bytes, entry.offset_bytes, tuple(entry.shape), _offsets(entry)


def _offsets(entry: TensorEntry) -> tuple[int, ...] | None:
    return None if entry.part is None else tuple(entry.part.offsets)


def _form(leaf: StoredLeaf) -> tuple[str, str]:
    return leaf.info.role, _shown(leaf)


def _shown(leaf: StoredLeaf) -> str:
    return f"{leaf.info.dtype} {list(leaf.info.shape)}"


def _file_bytes(leaves: Iterable[StoredLeaf]) -> int:
    return sum({piece.shard.key: piece.shard.size_bytes for leaf in leaves for piece in leaf.pieces}.values())


def _compared(a: Side, b: Side, key: _LeafKey, one: StoredLeaf, other: StoredLeaf) -> LeafDifference | None:
    divergence = LeafPair(a, b, one, other).divergence()
    if not divergence.differing:
        return None
    return LeafDifference(*key, one.info.role, "value", _shown(one), _shown(other), divergence)


def _unlike(key: _LeafKey, one: StoredLeaf | None, other: StoredLeaf | None, kind: Kind) -> LeafDifference:
    there = one or other
    assert there is not None  # noqa: S101 - the key is from one of the two
    form_a, form_b = (_shown(leaf) if leaf is not None else None for leaf in (one, other))
    return LeafDifference(*key, there.info.role, kind, form_a, form_b)


def _counted(
    one: dict[_LeafKey, StoredLeaf], other: dict[_LeafKey, StoredLeaf], leaves: Iterable[LeafDifference]
) -> dict[str, RoleCount]:
    roles: dict[str, RoleCount] = {role: RoleCount() for role in ROLES}
    for key in one:
        roles[one[key].info.role].equal += key in other
    for leaf in leaves:
        count = roles[leaf.role]
        count.only_in_a += leaf.kind == "only in a"
        count.only_in_b += leaf.kind == "only in b"
        if leaf.kind in ("form", "value"):
            count.differing += 1
            count.equal -= 1
    return {role: count for role, count in roles.items() if count != RoleCount()}


def _progress(a: Progress, b: Progress) -> dict[str, tuple[int, int]]:
    one, other = a.model_dump(), b.model_dump()
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}


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


def in_order_of_size(leaves: Iterable[LeafDifference]) -> Iterator[LeafDifference]:
    """Sort: those that cannot be compared first, then by relative difference and differing share, largest first."""

    def rank(leaf: LeafDifference) -> tuple[bool, float, float]:
        if leaf.divergence is None:
            return (False, 0.0, 0.0)
        part = leaf.divergence.differing / leaf.divergence.elements
        return (True, -(leaf.divergence.max_relative or 0.0), -part)

    yield from sorted(leaves, key=rank)
