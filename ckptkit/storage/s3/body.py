"""The bodies of requests and answers: out of memory, and into it, with a look at the clock on the way.

Guarantees: nothing is copied but what comes in, once. The threads are the callers'.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

BLOCK_BYTES = 1 << 20

_SPAN = re.compile(r"bytes (\d+)-(\d+)/.*")


class MemoryBody:
    """Memory as the file that botocore sends.

    Args:
        data: What is sent.
        check: Called before every block; what it raises ends the request.
    """

    def __init__(self, data: bytes | memoryview, check: Callable[[], None]) -> None:
        self._data = memoryview(data)
        self._check = check
        self._at = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int | None = None) -> memoryview:
        """The next block, empty at the end."""
        # The HTTP library asks for 16 KiB and sends whatever it is given: larger blocks save a thousand turns.
        self._check()
        wanted = BLOCK_BYTES if size is not None and size >= 0 else len(self._data)
        block = self._data[self._at : self._at + wanted]
        self._at += len(block)
        return block

    def seek(self, offset: int) -> int:
        """As of a file, from its start: the length is told by ``len``."""
        self._at = offset
        return self._at

    def tell(self) -> int:
        """As of a file."""
        return self._at


def size_of_part(answer: Mapping[str, Any], offset_bytes: int) -> int | None:
    """How many bytes of the file from ``offset_bytes`` on the answer has; None if it does not say, or has others."""
    span = _SPAN.fullmatch(answer.get("ContentRange", ""))
    if span is not None:
        return int(span[2]) - int(span[1]) + 1 if int(span[1]) == offset_bytes else None
    # Some servers give the right part as if it were the whole.
    return int(answer["ContentLength"]) if "ContentLength" in answer else None


def receive(raw: Any, buffers: Sequence[memoryview], size_bytes: int, check: Callable[[], None]) -> int:
    """Put at most ``size_bytes`` into ``buffers``; fewer only if the answer ends."""
    received = 0
    for buffer in buffers:
        at = 0
        while at < len(buffer) and received < size_bytes:
            check()
            data = raw.read1(min(BLOCK_BYTES, len(buffer) - at))  # what is there, so that the deadline is looked at
            if not data:
                return received
            buffer[at : at + len(data)] = data
            at += len(data)
            received += len(data)
    return received
