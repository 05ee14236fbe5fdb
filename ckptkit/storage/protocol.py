"""The seam between a run and the place where its bytes rest.

It is as small as the protocol of design section 3 allows, because every backend, every fault wrapper and every
test must get all of it right: list, read, write, create, delete. There is no rename, no append, no
overwrite and no modification time, since object stores have none that could be trusted. Two more verbs are about the
storage itself: `Storage.probe` at a start, and `Storage.clear_unfinished` for what deaths leave behind.

Keys are plain relative paths with ``/`` below the run root (`ckptkit.format.documents.checked_key`). Absence is the
builtin FileNotFoundError; a lost create-only race is the builtin FileExistsError; everything else that goes
wrong is a `StorageError` with the backend's error as ``__cause__``. An error is never an answer: neither
"absent" nor "empty". Calls block, and may come from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ckptkit.storage.source import ByteStream


@dataclass(frozen=True)
class Listing:
    """What lies directly below a folder; a folder that does not exist is an empty one.

    Attributes:
        folders: Names of the folders, in no particular order.
        files: Size in bytes by file name.
    """

    folders: frozenset[str] = frozenset()
    files: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable
class Storage(Protocol):
    """One run root."""

    @property
    def url(self) -> str:
        """The run root as the user may type it."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether bytes go over a network, so that a write may take long, or stand still for minutes."""
        ...

    @property
    def window_bytes(self) -> int:
        """How much to ask of one `read_into` for full speed."""
        ...

    def probe(self) -> None:
        """Find out whether files can be written here, as far as a start can tell.

        Raises:
            StorageError: If not; says what to change.
        """
        ...

    def list(self, folder: str, prefix: str = "") -> Listing:
        """List what lies directly below ``folder`` and has a name that begins with ``prefix``.

        Raises:
            StorageError: If it could not be listed.
        """
        ...

    def walk(self, prefix: str) -> Mapping[str, int]:
        """Sizes in bytes of all files, at any depth, whose keys begin with ``prefix``.

        Raises:
            StorageError: If they could not be listed.
        """
        ...

    def read(self, key: str, max_bytes: int) -> bytes:
        """The whole content of ``key``, or its first ``max_bytes + 1`` bytes if it is longer than that.

        Raises:
            FileNotFoundError: If there is no such file.
            CorruptCheckpointError: If it is proven that this file can never be read, while others can.
            StorageError: If it could not be read.
        """
        ...

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        """Fill ``buffers`` one after the other with the bytes from ``offset_bytes`` on.

        Args:
            key: The file.
            buffers: Any number of flat, writable views of bytes, empty ones among them.
            offset_bytes: Where in the file to begin.

        Returns:
            The bytes read, fewer than there is room for only at the end of the file.

        Raises:
            FileNotFoundError: If there is no such file.
            CorruptCheckpointError: As `read`.
            StorageError: If it could not be read.
        """
        ...

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        """Write a new file of exactly ``size_bytes``; when this returns, it survives a power loss.

        The buffers are the storage's, of its own choosing, so that bytes are copied once, to where the disk or
        the network takes them from. ``stream`` is asked from the calling thread only, for each byte once, and
        at the end for one byte more. What it raises reaches the caller as it is; a part of the file may lie
        there then.

        Raises:
            StorageError: If the file could not be written whole, exists already (it stays as it is), or
                ``stream`` has fewer bytes or more; a part of it may lie there.
        """
        ...

    def create(self, key: str, data: bytes) -> None:
        """Publish a small file at once and only if ``key`` is free; when this returns, it is durable.

        Raises:
            FileExistsError: If ``key`` exists, durably. After a lost reply it may be this call's own file.
            StorageError: If it may or may not have been created.
        """
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Remove files, and folders that this empties; absent ones are fine. Durable when this returns.

        Raises:
            StorageError: If one could not be removed; others may be.
        """
        ...

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        """Remove what writes and creates that never ended have left, such as parts of uploads, or empty folders.

        What a listing shows as a file under the key itself is not meant: `delete` removes that.

        Args:
            prefix: Where: only what was to become a key that begins with it.
            is_dead: Whether nobody writes the given key any more; of a folder, which ends in ``/``, any key in it.

        Returns:
            How many were removed.

        Raises:
            StorageError: If one could not be removed; others may be.
        """
        ...
