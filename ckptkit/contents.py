"""What goes into a checkpoint and what comes out of one, before and after it is bytes.

Guarantees: a `Contents` keeps no tensor of the model by itself, so that a restore needs no second state's worth of
memory, unless `Contents.tensors` is asked for. Values of any thread, but: the arrays of a `Capture` may be live
memory, which is good only between two micro-steps, and so may be the memory that `Contents.read_into` is given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from pydantic import JsonValue

from ckptkit.progress import Progress
from ckptkit.tensors import DTYPES, Array, Leaf, Role, size_bytes_of


@dataclass(frozen=True)
class Capture:
    """References to the whole state at one moment; valid only until the next micro-step.

    Attributes:
        progress: Where the run stands.
        leaves: Every tensor; their arrays may be live memory.
        state: Everything else, by section, encoded by `ckptkit.tree`.
    """

    progress: Progress
    leaves: tuple[Leaf, ...]
    state: Mapping[str, JsonValue]


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a stored tensor before its bytes are read.

    Attributes:
        dtype: Name in `ckptkit.tensors.DTYPES`, since BF16 and U16 look alike in NumPy.
        shape: Of the tensor; ``()`` for a scalar.
        role: Which kind of file it lies in.
    """

    dtype: str
    shape: tuple[int, ...]
    role: Role

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return size_bytes_of(self.dtype, self.shape)

    def empty(self) -> Array:
        """Memory for it, of whatever content, in the NumPy dtype of `ckptkit.tensors.DTYPES`."""
        return np.empty(self.shape, DTYPES[self.dtype])


class Source(Protocol):
    """Where the bytes of a `Contents` come from; the seam that keeps it apart from storages."""

    def read_into(self, targets: Mapping[str, memoryview], done: Callable[[str], None] | None) -> None:
        """As `Contents.read_into`."""
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
    """What a checkpoint holds, and how its tensors are read.

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
        unknown = sorted(targets.keys() - self.entries.keys())
        if unknown:
            raise ValueError(f"{self.checkpoint} holds no tensors {unknown[:10]}")
        self.source.read_into(targets, done)

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

        Args:
            held: What the tensors are now, by name; those of a file in which one is left out are to be read again.
        """
        return self.source.differing(held)
