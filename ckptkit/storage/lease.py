"""Creates files with a lease, on a storage that cannot refuse to overwrite.

A writer puts its token into ``lease.json``, waits for the settle time, and creates the file only if its token is still
there (``docs/adr/0003``). One writer creates a key and the others see it, as long as each writer's last three requests
together take less than the settle time. Any thread may call it.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from ckptkit.core.worker import Latch
from ckptkit.errors import StorageError

# Files at a run root that belong to the storage and not to the run.
LEASE = "lease.json"
PROBE = "probe"

SETTLE = timedelta(seconds=2)

_TRIES = 20
_MAX_BYTES = 1000

# Threads of one process exclude each other without a lease, also those of two storages on one root. A thread that had
# taken the lock does not exist after a fork.
_creating = threading.Lock()
os.register_at_fork(after_in_child=lambda: globals().update(_creating=threading.Lock()))


class Overwritable(Protocol):
    """Describes a storage where the last put wins."""

    def exists(self, key: str) -> bool: ...
    def read(self, key: str, max_bytes: int) -> bytes: ...
    def put(self, key: str, data: bytes) -> None: ...


class Lease:
    """Creates files below one run root, one writer at a time; a writer goes on if its token stays for ``settle``."""

    def __init__(
        self,
        storage: Overwritable,
        *,
        settle: timedelta = SETTLE,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._storage = storage
        self._settle = settle
        self._wait = wait or Latch().wait

    def create(self, key: str, data: bytes) -> None:
        """Write ``key``; raise FileExistsError if it exists, StorageError if others took the lease at every try."""
        with _creating:
            for _ in range(_TRIES):
                self._refuse_existing(key)
                if self._take():
                    self._refuse_existing(key)  # the previous holder of the lease may have created it meanwhile
                    self._storage.put(key, data)
                    return
        raise StorageError(
            f"could not create {key}: {_TRIES} times another process took {LEASE} within {self._settle}. Make sure "
            "that only one job writes to this run"
        )

    def _refuse_existing(self, key: str) -> None:
        if self._storage.exists(key):
            raise FileExistsError(f"{key} exists")

    def _take(self) -> bool:
        own = json.dumps({"held_by": secrets.token_hex(16)}).encode()
        self._storage.put(LEASE, own)
        self._wait(self._settle.total_seconds())
        try:
            return self._storage.read(LEASE, _MAX_BYTES) == own
        except FileNotFoundError:
            return False
