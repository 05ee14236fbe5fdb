"""Defines the `Storage` interface between a run and the place where its files are stored.

It has only the verbs that the commit protocol needs (``docs/adr/0001``): list, read, write, create, delete; no rename,
append, overwrite or modification time, since object stores have none that can be trusted. Two more verbs concern the
storage itself: `Storage.probe` at a start, and `Storage.clear_unfinished` for what killed processes leave behind.

Keys are plain relative paths with ``/`` below the run root (`ckptkit.format.documents.checked_key`). Absence is the
builtin FileNotFoundError. A lost create-only race is the builtin FileExistsError. Any other failure is a `StorageError`
with the backend's error as ``__cause__``: it means neither "absent" nor "empty". Calls block. Any thread may make them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ckptkit.storage.written_stream import ByteStream

_MOST_DEPTH = 8  # folders; a run has three. A file system that follows links may have folders without end.


@dataclass(frozen=True)
class Listing:
    """Holds the entries directly below a folder; a folder that does not exist is listed as empty.

    Attributes:
        folders: Names of the folders, in no particular order.
        files: Size in bytes by file name.
    """

    folders: frozenset[str] = frozenset()
    files: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable
class Storage(Protocol):
    """Reads and writes the files of one run root."""

    @property
    def url(self) -> str:
        """The run root as the user may type it."""

    @property
    def is_remote(self) -> bool:
        """Whether bytes go over a network, so that a write may be slow or stall for minutes."""

    @property
    def window_bytes(self) -> int:
        """Number of bytes to request from one `read_into` for full speed."""

    def probe(self) -> None:
        """Check that files can be written here, as far as a start can tell.

        Raises:
            StorageError: If they cannot; the message says what to change.
        """

    def list(self, folder: str, prefix: str = "") -> Listing:
        """List the entries directly below ``folder`` whose names begin with ``prefix``.

        Raises:
            StorageError: If the folder could not be listed.
        """

    def walk(self, prefix: str) -> Mapping[str, int]:
        """Return the sizes in bytes of all files, at any depth, whose keys begin with ``prefix``.

        Raises:
            StorageError: If they could not be listed.
        """

    def read(self, key: str, max_bytes: int) -> bytes:
        """Return the whole content of ``key``, or its first ``max_bytes + 1`` bytes if it is longer than that.

        Raises:
            FileNotFoundError: If the file does not exist.
            CorruptCheckpointError: If it is proven that this file can never be read, while others can.
            StorageError: If it could not be read.
        """

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        """Fill ``buffers`` one after the other with the bytes from ``offset_bytes`` on.

        Args:
            key: The file.
            buffers: Any number of flat, writable views of bytes; some may be empty.
            offset_bytes: Where in the file to begin.

        Returns:
            The number of bytes read; less than the buffers hold only at the end of the file.

        Raises:
            FileNotFoundError: If the file does not exist.
            CorruptCheckpointError: As in `read`.
            StorageError: If it could not be read.
        """

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        """Write a new file of exactly ``size_bytes``; when this returns, it survives a power loss.

        The storage chooses and owns the buffers, so that bytes are copied once, to where the disk or the network
        takes them from. It reads ``stream`` in the calling thread only, each byte once, and asks for one byte
        more at the end. An exception of ``stream`` reaches the caller unchanged; a part of the file may remain.

        Raises:
            StorageError: If the file could not be written whole, exists already (it stays as it is), or
                ``stream`` has fewer bytes or more; a part of the file may remain.
        """

    def create(self, key: str, data: bytes) -> None:
        """Publish a small file atomically, and only if ``key`` is free; when this returns, it is durable.

        Raises:
            FileExistsError: If ``key`` exists, durably. After a lost reply it may be this call's own file.
            StorageError: If the file may or may not have been created.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Remove files, and folders that become empty; ignores absent ones. Durable when this returns.

        Raises:
            StorageError: If one could not be removed; others may have been removed.
        """

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        """Remove what unfinished writes and creates have left, such as parts of uploads, or empty folders.

        Does not remove files that a listing shows under the key itself: `delete` does that.

        Args:
            prefix: Remove only leftovers of keys that begin with this.
            is_dead: Returns whether no process writes the given key any more; for a folder, which ends in ``/``,
                whether no process writes any key in it.

        Returns:
            The number of leftovers removed.

        Raises:
            StorageError: If one could not be removed; others may have been removed.
        """


def walk_folders(list_folder: Callable[[str, str], Listing], prefix: str) -> dict[str, int]:
    """Do what `Storage.walk` does where only folders can be listed; leaves out what lies deeper than a run's files."""
    folder, _, start = prefix.rpartition("/")
    sizes: dict[str, int] = {}
    waiting = [(folder, start)]
    while waiting:
        folder, start = waiting.pop()
        below = f"{folder}/" if folder else ""
        listing = list_folder(folder, start)
        sizes.update({below + file: size for file, size in listing.files.items()})
        if below.count("/") < _MOST_DEPTH:
            waiting.extend((below + child, "") for child in listing.folders)
    return sizes
