"""Reads the stream that a file is written from, and checks it against the announced size.

Guarantees: a stream that ends early, is too long or miscounts is an error before its file counts as written, in one
place for all backends. Exceptions of the stream itself pass through unchanged. Only the writing thread calls it.
"""

from __future__ import annotations

from typing import Protocol

from ckptkit.errors import StorageError


class ByteStream(Protocol):
    """Gives bytes in order, each once; `io.BytesIO` is one."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill ``buffer`` with the next bytes; returns their number, less than its length only at the end."""
        ...


class Source:
    """Reads a stream that must give exactly ``size_bytes``.

    Args:
        stream: The stream that gives the bytes.
        size_bytes: The announced number of bytes.
        target: The file that is written from it; for messages.
    """

    def __init__(self, stream: ByteStream, size_bytes: int, target: object) -> None:
        self._stream = stream
        self._size_bytes = size_bytes
        self._target = target
        self.left_bytes = size_bytes

    def fill(self, buffer: memoryview) -> int:
        """Put the next bytes into ``buffer``, as many as fit and are left; returns their number.

        Raises:
            StorageError: If the stream gave another number of bytes.
        """
        wanted = min(len(buffer), self.left_bytes)
        given = self._stream.readinto(buffer[:wanted])
        if given != wanted:
            at = self._size_bytes - self.left_bytes
            raise StorageError(
                f"could not write {self._target}: of the {self._size_bytes} bytes announced, its source returned "
                f"{given} after the first {at}, expected {wanted}"
            )
        self.left_bytes -= given
        return given

    def expect_end(self) -> None:
        """Check that the stream has no further byte.

        Raises:
            StorageError: If it has one.
        """
        if self._stream.readinto(memoryview(bytearray(1))):
            raise StorageError(
                f"could not write {self._target}: its source has more than the {self._size_bytes} bytes announced"
            )
