"""A disk that cannot read some places: the system call fails, as often as is said, and counts."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import pytest


class BadDisk:
    """Reads of files whose paths hold one of ``parts`` fail, below whatever root."""

    def __init__(self, *parts: str, number: int = errno.EIO, first: int = 0, times: int | None = None) -> None:
        self._parts = parts
        self._number = number
        self._first = first
        self._times = times
        self._seen = 0
        self._preadv = os.preadv
        self.fired = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> BadDisk:
        monkeypatch.setattr(os, "preadv", self.preadv)
        return self

    def preadv(self, descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if any(part in path for part in self._parts):
            number, self._seen = self._seen, self._seen + 1
            if number >= self._first and (self._times is None or number < self._first + self._times):
                self.fired += 1
                raise OSError(self._number, os.strerror(self._number))
        return self._preadv(descriptor, buffers, offset)
