"""Counts the batches that an iterator of MindSpore delivers. The thread that iterates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class CountedIterator:
    """Wraps a MindSpore iterator and reports each batch and the count before it delivers the batch."""

    def __init__(self, iterator: Any, delivered: int, tell: Callable[[Any, int], None]) -> None:
        self._iterator = iterator
        self._delivered = delivered
        self._tell = tell

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self._delivered += 1
        self._tell(batch, self._delivered)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)
