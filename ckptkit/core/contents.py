"""What goes into a checkpoint and what comes out of one, before and after it is bytes.

Guarantees: a `Contents` keeps no tensor of the model by itself, so that a restore needs no second state's worth of
memory, unless `Contents.tensors` is asked for. Values of any thread, but: the arrays of a `Capture` may be live
memory, which is good only between two micro-steps, and so may be the memory that `Contents.read_into` is given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from pydantic import JsonValue

from ckptkit.core.placement import Box, Tag, lies_inside
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import DTYPES, Array, Leaf, Role, size_bytes_of

IMPORTED = "imported"  # a section of the state; a checkpoint that has it holds weights only
NOT_IMPORTED = (
    "the optimizer's state",
    "accumulators",
    "counters",
    "random state",
    "data position",
    "stateful objects",
)


@dataclass(frozen=True)
class Capture:
    """References to the whole state at one moment; valid only until the next micro-step.

    Attributes:
        progress: Where the run stands.
        leaves: Every tensor; their arrays may be live memory.
        state: Everything else, by section, encoded by `ckptkit.core.tree`.
    """

    progress: Progress
    leaves: tuple[Leaf, ...]
    state: Mapping[str, JsonValue]


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a stored tensor before its bytes are read.

    Attributes:
        dtype: Name in `ckptkit.core.tensors.DTYPES`, since BF16 and U16 look alike in NumPy.
        shape: Of the tensor; ``()`` for a scalar. Of the whole, where the tensor is stored in parts.
        role: Which kind of file it lies in.
        placement: In the job that stored it.
    """

    dtype: str
    shape: tuple[int, ...]
    role: Role
    placement: Tag = "per_rank"

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return size_bytes_of(self.dtype, self.shape)

    def empty(self) -> Array:
        """Memory for it, of whatever content, in the NumPy dtype of `ckptkit.core.tensors.DTYPES`."""
        return np.empty(self.shape, DTYPES[self.dtype])


class WantedPart(NamedTuple):
    """A part of a tensor, and where it is to go.

    Attributes:
        name: Of the tensor.
        box: Where the part lies in the whole; its ``replica`` does not matter.
        shape: Of the part.
        memory: Flat, writable, unsigned bytes: as many as the part has.
    """

    name: str
    box: Box
    shape: tuple[int, ...]
    memory: memoryview


class Source(Protocol):
    """Where the bytes of a `Contents` come from; the seam that keeps it apart from storages."""

    def read_into(self, targets: Mapping[str, memoryview], done: Callable[[str], None] | None) -> None:
        """As `Contents.read_into`."""
        ...

    def read_parts(self, wanted: Sequence[WantedPart], done: Callable[[str], None] | None) -> None:
        """As `Contents.read_parts`."""
        ...

    def peek(self, name: str) -> Array:
        """As `Contents.peek`."""
        ...

    def prove(self, names: Collection[str]) -> None:
        """As `Contents.prove`."""
        ...

    def differing(self, held: Mapping[str, memoryview]) -> frozenset[str]:
        """As `Contents.differing`."""
        ...


def _nobody(rank: int) -> Contents:
    raise ValueError(f"these contents are of one rank alone; nothing is known of rank {rank}")


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds for one rank, and how its tensors are read: its own, and those that all ranks share.

    Its documents and the tensors of the role ``state`` were read and verified; every other one is read when asked for.

    Attributes:
        checkpoint: Its name.
        progress: Where the run stood.
        entries: What is known of every tensor, by name.
        state: As in `Capture`.
        state_tensors: The tensors that ``state`` refers to, by name.
        source: Reads the others.
        rank: Whose this was, in the job that stored it.
        world_size: How many ranks that job had.
        of_rank: Gives what the checkpoint holds for another one of them; reads the tensors of its state.
        root: Where it lies.
    """

    checkpoint: str
    progress: Progress
    entries: Mapping[str, TensorInfo]
    state: Mapping[str, JsonValue]
    state_tensors: Mapping[str, Array]
    source: Source
    rank: int = 0
    world_size: int = 1
    of_rank: Callable[[int], Contents] = _nobody
    root: str = ""

    @functools.cached_property
    def tensors(self) -> Mapping[str, Array]:
        """Bits of every tensor by name, verified: read into fresh memory at the first use, and kept.

        For small states; a large one goes where it belongs by `read_into`.

        Raises:
            CheckpointNotFoundError, CorruptCheckpointError, StorageError: As `read_into`.
        """
        found = {name: one.empty() for name, one in self.entries.items() if name not in self.state_tensors}
        self.read_into({name: array.reshape(-1).view(np.uint8).data for name, array in found.items()})
        return {**found, **self.state_tensors}

    def read_into(self, targets: Mapping[str, memoryview], done: Callable[[str], None] | None = None) -> None:
        """Read tensors, file by file, and verify each file in the same pass.

        If this raises, ``targets`` hold anything: bytes from before, right ones and wrong ones.

        Args:
            targets: By name the memory of a tensor: flat, writable, unsigned bytes. One is asked for right before its
                bytes are read, so that a lazy mapping needs not hold all at once. A file in which none of the tensors
                lies is not read.
            done: Called with a tensor's name when all its bytes are there; they are not verified by then.

        Raises:
            ValueError: If the checkpoint has no such tensor, or it is of another size; some may have been read.
            CheckpointNotFoundError: If the checkpoint was removed meanwhile.
            CorruptCheckpointError: If a file is missing or altered; names it.
            StorageError: If it could not be read.
        """
        self._refuse_unknown(targets.keys())
        self.source.read_into(targets, done)

    def read_parts(self, wanted: Sequence[WantedPart], done: Callable[[str], None] | None = None) -> None:
        """Read parts of tensors, whatever parts were stored; the way back of a leaf whose placement is a `Box`.

        Of a tensor that was stored in parts, only the blocks are read in which something lies that is wanted, and each
        is verified before a byte of it arrives. Any other tensor is read as by `read_into`, whole, and cut then.

        Tested with cuts made by hand, since MindSpore cuts no parameters on CPU: never run on Ascend with MindSpore's
        own layouts.

        Args:
            wanted: The parts; several of one tensor are fine.
            done: Called with a tensor's name whenever all bytes of a part of it are there.

        Raises:
            ValueError: If the checkpoint has no such tensor, a part lies outside of it, or its memory is of another
                size; nothing has been read.
            CorruptCheckpointError: Also if what was stored does not hold every element of a part exactly once, which
                is noticed before anything is read. If this raises later, the parts hold anything.
            CheckpointNotFoundError, StorageError: As `read_into`.
        """
        self._refuse_unknown({part.name for part in wanted})
        for part in wanted:
            self._refuse_unfit(part)
        self.source.read_parts(wanted, done)

    def _refuse_unknown(self, names: Collection[str]) -> None:
        unknown = sorted(set(names) - self.entries.keys())
        if unknown:
            raise ValueError(f"{self.checkpoint} holds no tensors {unknown[:10]}")

    def _refuse_unfit(self, part: WantedPart) -> None:
        info = self.entries[part.name]
        if part.box.global_shape != info.shape or not lies_inside(info.shape, part.box.offsets, part.shape):
            raise ValueError(
                f"{part.name} has the shape {info.shape} in {self.checkpoint}; there is no part of the shape "
                f"{part.shape} at {part.box.offsets} of {part.box.global_shape} in it"
            )
        size_bytes = size_bytes_of(info.dtype, part.shape)
        if part.memory.format != "B" or part.memory.ndim != 1 or len(part.memory) != size_bytes:
            raise ValueError(f"{part.name}: the part has {size_bytes} bytes, its memory is {part.memory.nbytes} bytes")

    def peek(self, name: str) -> Array:
        """The bits of one small tensor, read by itself and not verified.

        For what must be compared before anything is changed. A restore that goes on reads the same bytes once more by
        `read_into`, and fails there if they were altered; one that would be refused has to `prove` them first.

        Raises:
            CheckpointNotFoundError, CorruptCheckpointError, StorageError: As `read_into`.
        """
        return self.state_tensors[name] if name in self.state_tensors else self.source.peek(name)

    def prove(self, names: Collection[str]) -> None:
        """Verify the files in which the tensors ``names`` lie, and keep nothing; raises as `read_into`."""
        self.source.prove(names)

    def differing(self, held: Mapping[str, memoryview]) -> frozenset[str]:
        """Names of the tensors, without those of the role ``state``, that would have to be read again.

        Reads nothing from the storage: digests ``held`` in the place of each file that `read_into` verified before.
        Tensors that were stored in parts of a user's cut (``sharded``) are always to be read again.

        Args:
            held: What the tensors are now, by name; those of a file in which one is left out are to be read again.
        """
        return self.source.differing(held)
