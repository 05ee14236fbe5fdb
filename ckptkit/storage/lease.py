"""Create-only files on a storage that cannot refuse to overwrite: a lease takes the place of the condition.

Whoever wants to create a file writes its token into ``lease.json``, waits for the settle time, and goes on only if
the token is still there (``docs/adr/0016-conditions-and-leases.md``). Guarantees: of writers whose last three requests,
from the answer that the token stayed to the end of the put, together take less than the settle time, one creates a key
and the others see it. It does NOT guarantee that where they take longer: two may both pass then.
Any thread.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from ckptkit.errors import StorageError

# The files at a root that are the storage's own, and no part of a run.
LEASE = "lease.json"
PROBE = "probe"

SETTLE = timedelta(seconds=2)

_TRIES = 20
_MAX_BYTES = 1000


class Overwritable(Protocol):
    """A storage where the last put wins."""

    def exists(self, key: str) -> bool:
        """Whether there is such a file."""
        ...

    def read(self, key: str, max_bytes: int) -> bytes:
        """As `ckptkit.storage.Storage.read`."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write a file, also over another one."""
        ...


class Lease:
    """Creates files of one run root, one writer at a time.

    Args:
        storage: Where.
        settle: For how long a token must stay to count.
        wait: Waits for seconds.
        new_token: Gives fresh random text.
    """

    def __init__(
        self,
        storage: Overwritable,
        *,
        settle: timedelta = SETTLE,
        wait: Callable[[float], object] | None = None,
        new_token: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._storage = storage
        self._settle = settle
        self._wait = wait or threading.Event().wait
        self._new_token = new_token
        self._own = threading.Lock()  # threads of one process need no lease between them

    def create(self, key: str, data: bytes) -> None:
        """Write ``key`` unless it exists.

        Raises:
            FileExistsError: If it does.
            StorageError: If others held the lease all the time, or the storage failed.
        """
        with self._own:
            for _ in range(_TRIES):
                self._refuse_existing(key)
                if self._take():
                    self._refuse_existing(key)  # whoever had the lease before may have created it meanwhile
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
        own = json.dumps({"held_by": self._new_token()}).encode()
        self._storage.put(LEASE, own)
        self._wait(self._settle.total_seconds())
        try:
            return self._storage.read(LEASE, _MAX_BYTES) == own
        except FileNotFoundError:
            return False
