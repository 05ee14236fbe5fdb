"""Creates files with a lease, on a storage that cannot refuse to overwrite.

A writer puts its token into ``lease.json``, waits for the settle time, and creates the file only if its token is still
there (``docs/adr/0003``). Guarantees: one writer creates a key and the others see it, as long as each writer's last
three requests, from the answer that its token stayed to the end of the put, together take less than the settle time.
Does NOT guarantee this if they take longer: two writers may then both create it. Any thread may call it.
"""

from __future__ import annotations

import json
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


class Overwritable(Protocol):
    """Interface of a storage where the last put wins."""

    def exists(self, key: str) -> bool:
        """Return whether the file exists."""
        ...

    def read(self, key: str, max_bytes: int) -> bytes:
        """Do the same as `ckptkit.storage.Storage.read`."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write a file, replacing an existing one."""
        ...


class Lease:
    """Creates files below one run root, one writer at a time.

    Args:
        storage: The storage to create files in.
        settle: How long a token must stay in place before its writer goes on.
        wait: Waits for the given number of seconds.
    """

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
        self._own = threading.Lock()  # threads of one process exclude each other without a lease

    def create(self, key: str, data: bytes) -> None:
        """Write ``key`` unless it exists.

        Raises:
            FileExistsError: If it exists.
            StorageError: If other processes took the lease at every try, or the storage failed.
        """
        with self._own:
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
