"""A storage behind a wire that alters the answer of one read."""

import fnmatch
from collections.abc import Sequence

from ckptkit.storage import Storage
from ckptkit.testing.faults import FaultyStorage
from support.corrupt import corrupted


class Wire(FaultyStorage):
    """Alters the first answers with bytes of files whose key matches; what is stored stays as it is."""

    is_remote = False

    def __init__(self, inner: Storage, key: str, how: str, *, times: int = 1, is_remote: bool = False) -> None:
        super().__init__(inner)
        self.is_remote = is_remote
        self._key, self._how, self._left = key, how, times
        self.fired = 0

    def _strikes(self, key: str) -> bool:
        struck = self.fired < self._left and fnmatch.fnmatchcase(key, self._key)
        self.fired += struck
        return struck

    def read(self, key: str, max_bytes: int) -> bytes:
        data = super().read(key, max_bytes)
        return corrupted(data, self._how) if self._strikes(key) else data

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        count = super().read_into(key, buffers, offset_bytes)
        if not count or not self._strikes(key):
            return count
        if self._how == "flip":
            next(one for one in reversed(buffers) if len(one))[-1] ^= 1
        return count - (self._how == "cut")
