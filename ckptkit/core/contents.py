"""Defines what goes into a checkpoint and what comes out of it, as values instead of bytes.

A `Contents` holds no tensor of the model itself, so that a restore needs no memory for a second state, unless
`Contents.tensors` is used. The arrays of a `Capture`, and the memory given to `Contents.read_into`, may be live memory,
which is valid only between two micro-steps. Any thread.
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
from ckptkit.core.tensors import DTYPES, Array, Leaf, Role, bytes_of, size_bytes_of

IMPORTED = "imported"  # a section of the state; a checkpoint with it holds weights only
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
    """Refers to the whole state at one moment; valid only until the next micro-step."""

    progress: Progress
    leaves: tuple[Leaf, ...]
    state: Mapping[str, JsonValue]  # everything but tensors, by section, encoded by `ckptkit.core.state_encoding`


@dataclass(frozen=True)
class TensorInfo:
    """Describes a stored tensor before its bytes are read."""

    dtype: str  # name in `ckptkit.core.tensors.DTYPES`, because BF16 and U16 look alike in NumPy
    shape: tuple[int, ...]  # the whole shape, if the tensor is stored in parts
    role: Role
    placement: Tag = "per_rank"  # in the job that stored it

    @property
    def size_bytes(self) -> int:
        return size_bytes_of(self.dtype, self.shape)

    def empty(self) -> Array:
        return np.empty(self.shape, DTYPES[self.dtype])


class WantedPart(NamedTuple):
    """Names a part of a tensor and its destination: flat, writable, unsigned bytes."""

    name: str
    box: Box  # its ``replica`` does not matter
    shape: tuple[int, ...]
    memory: memoryview


class Sink(Protocol):
    """Receives tensors from `Contents.read_into`."""

    @property
    def names(self) -> Collection[str]: ...

    def ready(self, name: str) -> memoryview | None:
        """Return what `buffer` would, if that memory exists already, so that it may be filled at any time; or None."""

    def buffer(self, name: str) -> memoryview:
        """Return the memory of a tensor: flat, writable, unsigned bytes; called once, right before they are read."""

    def done(self, name: str) -> None:
        """Take a tensor, all of whose bytes are in its memory and verified."""


class Buffers:
    """Is a `Sink` of memory that exists already: flat, writable, unsigned bytes by the name of the tensor."""

    def __init__(self, memory: Mapping[str, memoryview]) -> None:
        self.names: Collection[str] = memory.keys()
        self._memory = memory

    def ready(self, name: str) -> memoryview:
        return self._memory[name]

    buffer = ready

    def done(self, name: str) -> None:
        """Do nothing: the bytes are where they are wanted."""


class Source(Protocol):
    """Supplies the bytes of a `Contents`, whose methods of these names say how; keeps it independent of storages."""

    def read_into(self, sink: Sink) -> None: ...
    def read_parts(self, wanted: Sequence[WantedPart], done: Callable[[str], None] | None) -> None: ...
    def peek(self, name: str) -> Array: ...
    def prove(self, names: Collection[str]) -> None: ...


def _nobody(rank: int) -> Contents:
    raise ValueError(f"these contents hold one rank only; rank {rank} is not available")


@dataclass(frozen=True)
class Contents:
    """Gives access to what a checkpoint holds for one rank: the rank's own tensors and those that all ranks share.

    The documents and the tensors of the role ``state`` are already read and verified; every other tensor is read on
    request.
    """

    checkpoint: str
    progress: Progress
    entries: Mapping[str, TensorInfo]
    state: Mapping[str, JsonValue]
    state_tensors: Mapping[str, Array]  # those that ``state`` refers to
    source: Source  # reads the other tensors
    rank: int = 0  # in the job that stored it
    world_size: int = 1
    of_rank: Callable[[int], Contents] = _nobody  # for another of its ranks; reads the tensors of its state
    root: str = ""  # location of the checkpoint

    @functools.cached_property
    def tensors(self) -> Mapping[str, Array]:
        """Bits of every tensor by name, verified: read into new memory at the first use, and kept; for small states."""
        arrays = {name: info.empty() for name, info in self.entries.items() if name not in self.state_tensors}
        self.read_into(Buffers({name: bytes_of(array).data for name, array in arrays.items()}))
        return {**arrays, **self.state_tensors}

    def read_into(self, sink: Sink) -> None:
        """Read the tensors that ``sink`` receives, file by file, and verify each file in the same pass.

        If this raises, the memory may hold old, correct and wrong bytes.

        Raises:
            ValueError: If the checkpoint has no such tensor, or its size differs; some tensors may have been read.
            CheckpointNotFoundError: If the checkpoint was removed meanwhile.
            CorruptCheckpointError: If a file is missing or altered; names it.
            StorageError: If a file could not be read.
        """
        self._refuse_unknown(sink.names)
        self.source.read_into(sink)

    def read_parts(self, wanted: Sequence[WantedPart], done: Callable[[str], None] | None = None) -> None:
        """Read parts of tensors, whatever parts were stored; restores leaves whose placement is a `Box`.

        For a tensor stored in parts, only the blocks that contain wanted bytes are read, and each is verified before a
        byte of it is delivered. Any other tensor is read whole, as by `read_into`, and then cut. ``done`` is called
        with a tensor's name whenever all bytes of one of its parts are read. Never run with MindSpore's own layouts.

        Raises:
            ValueError: If the checkpoint has no such tensor, a part lies outside it, or its memory has another size;
                nothing has been read.
            CorruptCheckpointError: Also if what was stored does not hold every element of a part exactly once, which is
                noticed before anything is read. If raised later, the parts hold arbitrary bytes.
        """
        self._refuse_unknown({part.name for part in wanted})
        for part in wanted:
            info = self.entries[part.name]
            if part.box.global_shape != info.shape or not lies_inside(info.shape, part.box.offsets, part.shape):
                raise ValueError(
                    f"{part.name} has the shape {info.shape} in {self.checkpoint}, which has no part of the shape "
                    f"{part.shape} at {part.box.offsets} of {part.box.global_shape}"
                )
            size_bytes = size_bytes_of(info.dtype, part.shape)
            if part.memory.format != "B" or part.memory.ndim != 1 or len(part.memory) != size_bytes:
                raise ValueError(
                    f"{part.name}: the part has {size_bytes} bytes, but its memory has {part.memory.nbytes} bytes"
                )
        self.source.read_parts(wanted, done)

    def _refuse_unknown(self, names: Collection[str]) -> None:
        unknown = sorted(set(names) - self.entries.keys())
        if unknown:
            raise ValueError(f"{self.checkpoint} does not hold the tensors {unknown[:10]}")

    def peek(self, name: str) -> Array:
        """Return the bits of one small tensor, read separately and not verified.

        For comparisons before anything is changed. A restore that proceeds reads the same bytes again with `read_into`,
        and fails there if they were altered. A restore that is about to be refused must `prove` them first.
        """
        return self.state_tensors[name] if name in self.state_tensors else self.source.peek(name)

    def prove(self, names: Collection[str]) -> None:
        """Verify the files that hold the tensors ``names``, and keep nothing; raises as `read_into` does."""
        self.source.prove(names)
