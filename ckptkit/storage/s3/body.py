"""Sends request bodies from memory and receives response bodies into memory, checking the deadline on the way.

Guarantees: outgoing bytes are not copied, incoming bytes are copied once. Runs in the caller's thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

BLOCK_BYTES = 1 << 20

_SPAN = re.compile(r"bytes (\d+)-(\d+)/.*")


class MemoryBody:
    """Presents memory as the file object that botocore sends.

    Args:
        data: The bytes to send.
        check: Called before every block; an exception that it raises ends the request.
    """

    def __init__(self, data: bytes | memoryview, check: Callable[[], None]) -> None:
        self._data = memoryview(data)
        self._check = check
        self._at = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int | None = None) -> memoryview:
        """Return the next block; empty at the end."""
        # The HTTP library asks for 16 KiB but sends whatever it gets: larger blocks save a thousand iterations.
        self._check()
        wanted = BLOCK_BYTES if size is not None and size >= 0 else len(self._data)
        block = self._data[self._at : self._at + wanted]
        self._at += len(block)
        return block

    def seek(self, offset: int) -> int:
        """Move to a position from the start of the memory."""
        self._at = offset
        return self._at

    def tell(self) -> int:
        """Return the position, as in a file."""
        return self._at


def size_of_part(answer: Mapping[str, Any], offset_bytes: int) -> int | None:
    """Return how many bytes from ``offset_bytes`` on the answer holds; None if it gives no size or another range."""
    span = _SPAN.fullmatch(answer.get("ContentRange", ""))
    if span is not None:
        return int(span[2]) - int(span[1]) + 1 if int(span[1]) == offset_bytes else None
    # Some servers send the right part without Content-Range, as if it were the whole file.
    return int(answer["ContentLength"]) if "ContentLength" in answer else None


def receive(raw: Any, buffers: Sequence[memoryview], size_bytes: int, check: Callable[[], None]) -> int:
    """Put ``size_bytes`` into ``buffers``, or fewer if the answer ends or the buffers are full; returns the number."""
    received = 0
    for buffer in buffers:
        at = 0
        while at < len(buffer) and received < size_bytes:
            check()
            data = raw.read1(
                min(BLOCK_BYTES, len(buffer) - at)
            )  # only what has arrived, so that the deadline is checked
            if not data:
                return received
            buffer[at : at + len(data)] = data
            at += len(data)
            received += len(data)
    return received
