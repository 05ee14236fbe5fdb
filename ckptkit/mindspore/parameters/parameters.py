"""Finds the parameters and buffers of a training's cells, gives their leaves, and reads stored values into them.

Guarantees: every parameter and every buffer of the cells is a leaf exactly once, under its own name; a name used for
two is refused. A buffer may change at any time, so each save copies it. Main thread only; the arrays of
`CellParameters.leaves` may be live memory, valid as long as their lifetime says.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.core.contents import Contents, WantedPart
from ckptkit.core.placement import Box, Placement, PlacementByName
from ckptkit.core.tensors import Array, Leaf, LeafSpec, Lifetime, Role, bits_of, digest_of_bits, digests_of, dtype_of
from ckptkit.core.text import some
from ckptkit.errors import ResumeError, StateMismatchError
from ckptkit.mindspore.parameters.apply import RestoreTarget, can_be_live
from ckptkit.mindspore.parameters.roles import Roles, all_of
from ckptkit.mindspore.train.cell import optimizers_of

_ASKED = 8
# Where nn.Cell keeps parameters and cells. If these move, `tests/unit/mindspore/parameters/test_roles.py` fails.
_KEPT_IN = ("_params", "_cells")


class CellParameters:
    def __init__(
        self,
        cells: Sequence[nn.Cell],
        frozen: Iterable[str] | Callable[[str], bool] | None,
        steady: Collection[nn.Cell] = (),
        placement: PlacementByName | None = None,
    ) -> None:
        for cell in cells:
            # The first call would do this, and rename parameters if a cell has one name twice. Do it before reading
            # names.
            cell.check_names_and_refresh_name()
        self._cells = cells
        self._kept = KeptParameters(cells)
        self._by_name = _by_name(cells)
        self._registered = CellBuffers(cells, self._by_name)
        self._buffers = self._registered.now()
        self._buffers_before: dict[str, str] = {}
        self.as_read: dict[str, str] = {}  # digests, of all that was there after `read_from`
        self.roles = Roles(cells, self._by_name, frozen, steady, placement)
        self._tracking: list[TrackedTensor] = []
        self._tracking_at_boundary: list[TrackedTensor] = []

    def tensors(self) -> dict[str, ms.Tensor]:
        """Return the parameters and buffers by name; the buffers are those of the last call of `leaves`."""
        return {**self._by_name, **self._buffers}

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Array:
        """Return the bits of one parameter, which may be live memory."""
        array: Array = self._by_name[name].asnumpy()
        return array

    def leaves(self, *, at_boundary: bool) -> list[Leaf]:
        """Return all leaves, after waiting for every running operation; at a boundary without the accumulators."""
        self._kept.refuse_replaced()
        chosen = self._tracked(at_boundary)
        synchronize([tracked.tensor for tracked in chosen])
        return [tracked.leaf() for tracked in chosen]

    def seen(self) -> list[Leaf | None]:
        """Return the last leaf of each parameter and buffer; another object where the memory changed since."""
        return [tracked.last_leaf for tracked in self._tracking]

    def _tracked(self, at_boundary: bool) -> list[TrackedTensor]:
        buffers = self._registered.now()
        if not self._tracking or not _are_same(buffers, self._buffers):
            self._buffers = buffers
            deferred = looking_copies(list(self._by_name.values()))
            self._tracking = [
                TrackedTensor(
                    *(name, tensor, self._role(name), partial(self.roles.lifetime, name)),
                    placement=self.roles.placement(name),
                    deferred=deferred,
                )
                for name, tensor in self.tensors().items()
            ]
            self._tracking_at_boundary = [
                tracked for tracked in self._tracking if tracked.name not in self.roles.accumulators
            ]
        return self._tracking_at_boundary if at_boundary else self._tracking

    def _role(self, name: str) -> Role:
        return "weights" if name in self._buffers else self.roles.role(name)

    def rates(self) -> dict[str, str]:
        """Return, by name, digests of the optimizer arguments that the optimizer keeps as parameters."""
        names = [name for name in self._by_name if name in self.roles.owned and is_rate(name)]
        return {name: digest_of_bits(self[name]) for name in names}

    def digests(self) -> dict[str, str]:
        return digests_of(self.leaves(at_boundary=False))

    def digests_in_place(self) -> dict[str, str]:
        """Return the same as `digests`; nothing where reading copies."""
        return self.digests() if can_be_live() else {}

    def steady_digests(self) -> dict[str, str]:
        """Return, by name, the digest of every parameter that is assumed not to change within a cycle."""
        return digests_of([leaf for leaf in self.leaves(at_boundary=True) if leaf.lifetime != "micro"])

    def note_buffers(self) -> None:
        self._buffers_before = self._digests_of_buffers(self.leaves(at_boundary=True))

    def changed_buffers(self, leaves: Sequence[Leaf]) -> list[str]:
        """Return the names of buffers that have changed since `note_buffers`, given ``leaves`` taken just now."""
        now = self._digests_of_buffers(leaves)
        return sorted(name for name, digest in self._buffers_before.items() if now.get(name) != digest)

    def _digests_of_buffers(self, leaves: Sequence[Leaf]) -> dict[str, str]:
        return digests_of([leaf for leaf in leaves if leaf.name in self._buffers])

    def demote(self, names: Collection[str]) -> None:
        self.roles.demote(names)
        self._tracking = []

    def stored(self, leaves: Mapping[str, Leaf], *, at_boundary: bool) -> dict[str, Leaf]:
        return {name: leaf for name, leaf in leaves.items() if not (at_boundary and name in self.roles.accumulators)}

    def mutable_leaves(self) -> Iterator[Leaf]:
        """Return what a forward pass can change: weights, and all that a save copies but the accumulators."""
        return (leaf for leaf in self.leaves(at_boundary=True) if leaf.lifetime == "micro" or leaf.role == "weights")

    def read_from(self, contents: Contents, seen: Mapping[str, Leaf]) -> None:
        """Read each stored value straight into its parameter's memory; accumulators that were left out become zero."""
        target = self._read(contents, seen, [name for name in self.tensors() if name in contents.entries])
        self._zero_absent(contents, target)
        self.as_read = self.digests_in_place()

    def importable(self, contents: Contents) -> frozenset[str]:
        """Return `Roles.of_networks` and the buffers in ``contents``; MindSpore's weight files have no buffers."""
        return self.roles.of_networks | (self._buffers.keys() & contents.entries.keys())

    def read_weights_from(self, contents: Contents, seen: Mapping[str, Leaf]) -> None:
        """Read the stored values of what is `importable` and leave all else unchanged; as `read_from`."""
        self._read(contents, seen, self.importable(contents))

    def read_again_from(self, contents: Contents) -> list[str]:
        """Restore again what changed after `read_from`, and return its names; where reading copies, everything."""
        seen = {leaf.name: leaf for leaf in self.leaves(at_boundary=False)}
        now = self.digests_in_place()
        same = {name for name, digest in now.items() if digest == self.as_read.get(name)}
        changed = [name for name in self.tensors() if name in contents.entries and name not in same]
        self._zero_absent(contents, self._read(contents, seen, changed))
        return changed if now else []

    def _read(self, contents: Contents, seen: Mapping[str, Leaf], names: Collection[str]) -> RestoreTarget:
        parts = {name: seen[name].spec for name in names if isinstance(seen[name].spec.placement, Box)}
        target = RestoreTarget(self.tensors(), contents.entries, seen, set(names) - parts.keys())
        contents.read_into(target)
        wanted = [
            WantedPart(name, spec.placement, spec.shape, target.buffer(name))
            for name, spec in parts.items()
            if isinstance(spec.placement, Box)
        ]
        contents.read_parts(wanted, target.done)
        return target

    def _zero_absent(self, contents: Contents, target: RestoreTarget) -> None:
        for name in self.roles.accumulators - contents.entries.keys():
            target.zero(name)


def _by_name(cells: Sequence[nn.Cell]) -> dict[str, ms.Parameter]:
    parameters: dict[str, ms.Parameter] = {}
    twice: dict[str, nn.Cell] = {}
    for cell in cells:
        for parameter in all_of(cell):
            if parameters.setdefault(parameter.name, parameter) is not parameter:
                twice[parameter.name] = cell
    if twice:
        name = "second_optimizer" if optimizers_of([*twice.values()][:1]) else "ema"
        raise StateMismatchError(
            f"parameters must have names of their own; used twice: {some(sorted(twice))}. "
            f"Rename them (Cell.update_parameters_name), or give one of the cells by name: StateManager(..., {name}=it)"
        )
    return parameters


def _are_same(tensors: Mapping[str, ms.Tensor], others: Mapping[str, ms.Tensor]) -> bool:
    return tensors.keys() == others.keys() and all(tensor is others[name] for name, tensor in tensors.items())


class TrackedTensor:
    def __init__(
        self,
        name: str,
        tensor: ms.Tensor,
        role: Role,
        lifetime_of: Callable[[int], Lifetime],
        *,
        placement: Placement = "per_rank",
        deferred: bool,
    ) -> None:
        self.name = name
        self.tensor = tensor
        self._role = role
        self._lifetime_of = lifetime_of
        self._placement = placement
        self._deferred = deferred
        self._pointer: int | None = None
        self._shape: tuple[int, ...] = ()
        self._dtype: object = None
        self.last_leaf: Leaf | None = None  # what `leaf` returned last

    def leaf(self) -> Leaf:
        tensor = self.tensor
        leaf = self.last_leaf
        # The leaf's array keeps its memory alive, so no other tensor can have got that address since.
        if (
            leaf is not None
            and tensor.data_ptr() == self._pointer
            and tensor.shape == self._shape
            and tensor.dtype is self._dtype  # MindSpore has one object of each; comparing two is slow
        ):
            return leaf
        return self._take()

    def _take(self) -> Leaf:
        tensor = self.tensor
        array = tensor.asnumpy()
        spec = LeafSpec(
            self.name,
            self._role,
            self._lifetime_of(array.nbytes),
            dtype_of(self.name, array),
            tuple(array.shape),
            self._placement,
        )
        if self.last_leaf is not None and self.last_leaf.spec == spec:
            spec = self.last_leaf.spec  # the same object, so that comparing specs with a plan stays fast
        self._shape, self._dtype, self._pointer = tensor.shape, tensor.dtype, tensor.data_ptr()
        if self._deferred and spec.lifetime != "micro":
            self.last_leaf = Leaf(spec, lambda: bits_of(tensor.asnumpy()))
            return self.last_leaf
        self.last_leaf = Leaf(spec, bits_of(array))
        if self.last_leaf.array.__array_interface__["data"][0] != self._pointer:
            self._pointer = None  # a copy, such as of a transposed tensor: valid for this save only
        return self.last_leaf


def synchronize(tensors: Sequence[ms.Tensor]) -> None:
    """Wait for every running operation.

    Reading one tensor does that, since operations end in the order in which they began. Several are read because only
    that was tested. (`ms.runtime.synchronize` logs an error on CPU.)
    """
    for tensor in [*tensors[:: max(1, len(tensors) // _ASKED)], *tensors[-1:]]:
        tensor.asnumpy()


def looking_copies(tensors: Sequence[ms.Tensor]) -> bool:
    """Return whether reading a tensor gives a copy and not its memory; tries it on the smallest one."""
    if not can_be_live():
        return True  # not tried: two reads may share one copy
    filled = [tensor for tensor in tensors if tensor.size]
    if not filled:
        return False
    smallest = min(filled, key=lambda tensor: tensor.size)
    return not np.may_share_memory(smallest.asnumpy(), smallest.asnumpy())


class CellBuffers:
    def __init__(self, cells: Sequence[nn.Cell], parameters: Mapping[str, ms.Parameter]) -> None:
        self._parameters = parameters
        places: dict[int, tuple[str, nn.Cell]] = {}
        for prefix, inner in itertools.chain.from_iterable(map(_places, cells)):
            places.setdefault(id(inner), (prefix, inner))
        self._places = list(places.values())
        self._kept = [vars(cell)["_buffers"] for _, cell in self._places if "_buffers" in vars(cell)]

    def now(self) -> dict[str, ms.Tensor]:
        if len(self._kept) == len(self._places) and not any(self._kept):
            return {}  # shortcut for most networks, in a tenth of the time
        seen = {id(parameter) for parameter in self._parameters.values()}
        buffers: dict[str, ms.Tensor] = {}
        twice = []
        for prefix, cell in self._places:
            # named_buffers() walks all cells, which would take milliseconds of every save.
            for key, buffer in vars(cell).get("_buffers", {}).items():
                if buffer is None or id(buffer) in seen:
                    continue
                seen.add(id(buffer))
                name = f"{prefix}{key}"
                if name in buffers or name in self._parameters:
                    twice.append(name)
                buffers[name] = buffer
        if twice:
            raise StateMismatchError(
                "buffers must have names of their own, and not those of parameters; used twice: "
                f"{some(sorted(twice))}. Register them by other names, or give one of the cells by name: "
                "StateManager(..., ema=it)"
            )
        return buffers


def _places(cell: nn.Cell) -> Iterator[tuple[str, nn.Cell]]:
    """Yield the cells in ``cell`` with the prefix of their buffers' names; a train cell's network comes first."""
    network = getattr(cell, "network", None)
    for root in (network, cell) if hasattr(cell, "optimizer") else (cell,):
        if isinstance(root, nn.Cell):
            yield from ((f"{path}." if path else "", inner) for path, inner in root.cells_and_names())


class CellChanges:
    """Remembers the present parameters and cells in ``cells`` and in all cells inside them."""

    def __init__(self, cells: Sequence[nn.Cell]) -> None:
        every = {id(inner): inner for root in cells for _, inner in root.cells_and_names()}
        self._kept = [vars(inner)[name] for inner in every.values() for name in _KEPT_IN if name in vars(inner)]
        self._sizes = [*map(len, self._kept)]
        self._held = [*itertools.chain.from_iterable(kept.values() for kept in self._kept)]

    def are_changed(self) -> bool:
        if [*map(len, self._kept)] != self._sizes:
            return True
        now = itertools.chain.from_iterable(map(dict.values, self._kept))
        return not all(map(operator.is_, now, self._held))


class KeptParameters:
    """Refuses a training whose cells have other parameters than when this was made."""

    def __init__(self, cells: Sequence[nn.Cell], name: str = "") -> None:
        self._cells = cells
        self._prefix = f"{name}/" if name else ""
        self._changes = CellChanges(cells)
        self._known = self._now()  # holds the parameters, so that no id is reused

    def refuse_replaced(self) -> None:
        if not self._changes.are_changed():
            return
        now = self._now()
        if self._known.keys() != now.keys():
            every = {**self._known, **now}
            names = sorted({f"{self._prefix}{every[identity].name}" for identity in self._known.keys() ^ now.keys()})
            raise ResumeError(
                f"parameters were replaced or added after the StateManager was made: {some(names)}. The optimizer "
                "keeps the old ones, and a new start does not have the new ones, so no resume could be exact. Set a "
                "parameter with ops.assign; change the network before making the StateManager"
            )
        self._changes = CellChanges(self._cells)

    def _now(self) -> dict[int, ms.Parameter]:
        return {id(parameter): parameter for cell in self._cells for parameter in all_of(cell)}


def is_rate(name: str) -> bool:
    """Return whether MindSpore's optimizers keep a constructor argument under ``name``: learning rate or momentum."""
    last = name.rpartition(".")[2]
    return last.startswith("learning_rate") or last == "momentum"
