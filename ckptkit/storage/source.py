"""What a file is written from: a stream that is held to the size that was announced.

Guarantees: a stream that ends early, goes on for too long or miscounts is noticed before its file counts as
written, in one place for all backends; what the stream itself raises passes through untouched. The thread that
writes.
"""

from __future__ import annotations

from typing import Protocol

from ckptkit.errors import StorageError


class ByteStream(Protocol):
    """Bytes in order, each given once; `io.BytesIO` is one."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill ``buffer`` with the next bytes; returns how many, fewer than its length only at the end."""
        ...


class Source:
    """A stream that has to give ``size_bytes``, no more and no fewer.

    Args:
        stream: Whoever makes the bytes.
        size_bytes: What it announced.
        target: What is written from it; for messages.
    """

    def __init__(self, stream: ByteStream, size_bytes: int, target: object) -> None:
        self._stream = stream
        self._size_bytes = size_bytes
        self._target = target
        self.left_bytes = size_bytes

    def fill(self, buffer: memoryview) -> int:
        """Put the next bytes into ``buffer``, as many as fit and are left; returns how many that is.

        Raises:
            StorageError: If the stream gave another number of bytes.
        """
        wanted = min(len(buffer), self.left_bytes)
        given = self._stream.readinto(buffer[:wanted])
        if given != wanted:
            at = self._size_bytes - self.left_bytes
            raise StorageError(
                f"could not write {self._target}: of {self._size_bytes} bytes announced, its source was asked for"
                f" {wanted} after the first {at} and gave {given}"
            )
        self.left_bytes -= given
        return given

    def expect_end(self) -> None:
        """Ask for one byte more, which must not be there.

        Raises:
            StorageError: If it is.
        """
        if self._stream.readinto(memoryview(bytearray(1))):
            raise StorageError(
                f"could not write {self._target}: its source goes on after the {self._size_bytes} bytes announced"
            )
