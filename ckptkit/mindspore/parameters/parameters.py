"""Finds the parameters and buffers of a training's cells, gives their leaves, and reads stored values into them.

Guarantees: every parameter and every buffer of the cells is a leaf exactly once, under its own name; a name used for
two is refused. A buffer may change at any time, so each save copies it. Main thread only; the arrays of
`CellParameters.leaves` may be live memory, valid as long as their lifetime says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import mindspore as ms
from mindspore import nn

from ckptkit.core.contents import Contents, WantedPart
from ckptkit.core.placement import Box, PlacementByName
from ckptkit.core.tensors import Array, Leaf, Role, digest_of_bits, digests_of
from ckptkit.core.text import some
from ckptkit.errors import StateMismatchError
from ckptkit.mindspore.parameters.apply import can_be_live
from ckptkit.mindspore.parameters.buffers import Buffers
from ckptkit.mindspore.parameters.cell_changes import KeptParameters
from ckptkit.mindspore.parameters.restore import RestoreTarget
from ckptkit.mindspore.parameters.roles import Roles, all_of, optimizers_of
from ckptkit.mindspore.parameters.tracked import TrackedTensor, looking_copies, synchronize
from ckptkit.mindspore.state.compatibility import is_rate


class CellParameters:
    """Holds every parameter and every buffer of ``cells``.

    Args:
        cells: The cell that is called once per micro-batch, or, for a training without one, its network, optimizer and
            any other cells. A parameter that several cells share counts once.
        frozen: Names of the networks' parameters that training never changes, or a predicate, which is called for
            those only; None for none.
        steady: Those of their optimizers whose parameters only the last call of a cycle changes.
        placement: Returns a parameter's placement in a job of many ranks, by its name, or None for the default. By
            default, what an optimizer owns, what is declared frozen and the loss scale are replicated. The accumulators
            and all else are per rank, such as the statistics that each rank's forward pass takes of its batches.

    Attributes:
        roles: Role, placement and lifetime of each parameter.

    Raises:
        StateMismatchError: If parameters or buffers of two cells have one name, or ``frozen`` names a parameter that
            does not exist, that no network has, or that an optimizer updates.
        TypeError: If ``placement`` gives something else.
        ValueError: If ``placement`` gives a box that does not fit the parameter.
    """

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
        self._registered = Buffers(cells, self._by_name)
        self._buffers = self._registered.now()
        self._buffers_before: dict[str, str] = {}
        self.roles = Roles(cells, self._by_name, frozen, steady, placement)
        self._moved: set[str] = set()
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
        """Return all leaves, after waiting for every running operation; at a boundary without the accumulators.

        Raises:
            ResumeError: If the cells have other parameters than when this was made.
        """
        self._kept.refuse_replaced()
        chosen = self._tracked(at_boundary)
        synchronize([one.tensor for one in chosen])
        return [one.leaf() for one in chosen]

    def seen(self) -> list[Leaf | None]:
        """Return the last leaf of each parameter and buffer; another object where the memory changed since."""
        return [one.last_leaf for one in self._tracking]

    def _tracked(self, at_boundary: bool) -> list[TrackedTensor]:
        buffers = self._registered.now()
        if not self._tracking or not _are_same(buffers, self._buffers):
            self._buffers = buffers
            deferred = looking_copies(list(self._by_name.values()))
            self._tracking = [
                TrackedTensor(
                    *(name, one, self._role(name), partial(self.roles.lifetime, name)),
                    placement=self.roles.placement(name),
                    deferred=deferred,
                    moved=self._moved,
                )
                for name, one in self.tensors().items()
            ]
            self._tracking_at_boundary = [one for one in self._tracking if one.name not in self.roles.accumulators]
        return self._tracking_at_boundary if at_boundary else self._tracking

    def _role(self, name: str) -> Role:
        return "weights" if name in self._buffers else self.roles.role(name)

    def moved(self) -> set[str]:
        """Return the names of tensors whose memory changed between two calls of `leaves`, since the last call of this.

        Only memory that stays in place during training is meaningful here: on CPU.
        """
        moved = self._moved.copy() if can_be_live() else set()
        self._moved.clear()
        return moved

    def rates(self) -> dict[str, str]:
        """Return, by name, digests of the optimizer arguments that the optimizer keeps as parameters."""
        names = [name for name in self._by_name if name in self.roles.owned and is_rate(name)]
        return {name: digest_of_bits(self[name]) for name in names}

    def digests(self) -> dict[str, str]:
        """Return, by name, the digest of every parameter and buffer."""
        return digests_of(self.leaves(at_boundary=False))

    def digests_in_place(self) -> dict[str, str]:
        """Return the same as `digests`; nothing where reading copies."""
        return self.digests() if can_be_live() else {}

    def steady_digests(self) -> dict[str, str]:
        """Return, by name, the digest of every parameter that is assumed not to change within a cycle."""
        return digests_of([leaf for leaf in self.leaves(at_boundary=True) if leaf.lifetime != "micro"])

    def note_buffers(self) -> None:
        """Remember the present buffers, for `changed_buffers`."""
        self._buffers_before = self._digests_of_buffers(self.leaves(at_boundary=True))

    def changed_buffers(self, leaves: Sequence[Leaf]) -> list[str]:
        """Return the names of buffers that have changed since `note_buffers`, given ``leaves`` taken just now."""
        now = self._digests_of_buffers(leaves)
        return sorted(name for name, digest in self._buffers_before.items() if now.get(name) != digest)

    def _digests_of_buffers(self, leaves: Sequence[Leaf]) -> dict[str, str]:
        return digests_of([leaf for leaf in leaves if leaf.name in self._buffers])

    def idle_bytes(self) -> tuple[int, int]:
        """Return the bytes of parameters that no optimizer owns and that are not declared frozen, and of all leaves.

        The second number includes buffers.
        """
        leaves = self.leaves(at_boundary=True)
        known = self.roles.owned | self.roles.frozen | self._buffers.keys()
        return sum(leaf.size_bytes for leaf in leaves if leaf.name not in known), sum(
            leaf.size_bytes for leaf in leaves
        )

    def demote(self, names: Collection[str]) -> None:
        """Treat ``names`` as changing at every micro-step from now on."""
        self.roles.demote(names)
        self._tracking = []

    def stored(self, leaves: Mapping[str, Leaf], *, at_boundary: bool) -> dict[str, Leaf]:
        """Return those of all ``leaves`` that a checkpoint holds."""
        return {name: leaf for name, leaf in leaves.items() if not (at_boundary and name in self.roles.accumulators)}

    def mutable_leaves(self) -> Iterator[Leaf]:
        """Return what a forward pass can change: weights, and all that a save copies but the accumulators."""
        return (leaf for leaf in self.leaves(at_boundary=True) if leaf.lifetime == "micro" or leaf.role == "weights")

    def read_from(self, contents: Contents, seen: Mapping[str, Leaf]) -> None:
        """Read each stored value straight into its parameter's memory; accumulators that were left out become zero.

        Args:
            contents: Compared with the parameters before.
            seen: All `leaves` by name, taken just now.

        Raises:
            CkptKitError: As `Contents.read_into`; the content of the parameters is then undefined.
        """
        target = self._read(contents, seen, [name for name in self.tensors() if name in contents.entries])
        self._zero_absent(contents, target)

    def importable(self, contents: Contents) -> frozenset[str]:
        """Return `Roles.of_networks` and the buffers in ``contents``; MindSpore's weight files have no buffers."""
        return self.roles.of_networks | (self._buffers.keys() & contents.entries.keys())

    def read_weights_from(self, contents: Contents, seen: Mapping[str, Leaf]) -> None:
        """Read the stored values of what is `importable` and leave all else unchanged; as `read_from`."""
        self._read(contents, seen, self.importable(contents))

    def read_again_from(self, contents: Contents) -> None:
        """Restore again what changed after `read_from`; reads only the files whose bytes are no longer in memory."""
        seen = {leaf.name: leaf for leaf in self.leaves(at_boundary=False)}
        memory = RestoreTarget(self.tensors(), contents.entries, seen, ())
        live = {name: memory.ready(name) for name in self.tensors() if name in contents.entries}
        held = {name: bits for name, bits in live.items() if bits is not None}
        self._zero_absent(contents, self._read(contents, seen, contents.differing(held)))

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
    found: dict[str, ms.Parameter] = {}
    twice: dict[str, nn.Cell] = {}
    for cell in cells:
        for parameter in all_of(cell):
            if found.setdefault(parameter.name, parameter) is not parameter:
                twice[parameter.name] = cell
    if twice:
        name = "second_optimizer" if optimizers_of([*twice.values()][:1]) else "ema"
        raise StateMismatchError(
            f"parameters must have names of their own; used twice: {some(sorted(twice))}. "
            f"Rename them (Cell.update_parameters_name), or give one of the cells by name: StateManager(..., {name}=it)"
        )
    return found


def _are_same(tensors: Mapping[str, ms.Tensor], others: Mapping[str, ms.Tensor]) -> bool:
    return tensors.keys() == others.keys() and all(one is others[name] for name, one in tensors.items())
