"""Renews access keys that may change while a job runs.

Each request is signed with the newest keys that the source gave. The source is asked again shortly before keys expire
and when the server says that they have expired, by one thread at a time. Any thread may call it.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from botocore.credentials import CredentialProvider, Credentials, ReadOnlyCredentials
from botocore.session import Session

from ckptkit.errors import StorageError
from ckptkit.scrubber import learn
from ckptkit.storage.s3.retry import Transient

_log = logging.getLogger("ckptkit")
_EARLY = timedelta(minutes=5)


@dataclass(frozen=True)
class Keys:
    """Holds the access key, secret key and session token that sign a request, and when they expire, if known."""

    key: str
    secret: str
    token: str | None = None
    expires: datetime | None = None

    @classmethod
    def of(cls, given: object) -> Keys:
        """Convert what a user's function returned: `Keys`, or a mapping with the names of its attributes."""
        if isinstance(given, Keys):
            return given
        known = {"key", "secret", "token", "expires"}
        if not isinstance(given, Mapping) or not {"key", "secret"} <= set(given) <= known:
            raise StorageError("credentials= must return a mapping with key, secret and optionally token and expires")
        keys = cls(**given)
        if keys.expires is not None and (not isinstance(keys.expires, datetime) or keys.expires.tzinfo is None):
            raise StorageError("expires, as returned by credentials=, must be a datetime with a time zone")
        return keys

    def __repr__(self) -> str:
        return f"Keys(key={self.key[:4]}..., expires={self.expires})"  # keep secrets out of logs


class RenewedCredentials(Credentials):  # type: ignore[misc]  # botocore ships no types
    """Gives botocore the keys for each request, and renews them from ``source``; ``generation`` counts changes."""

    def __init__(
        self,
        source: Callable[[], Keys],
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._source = source
        self._now = now
        self._lock = threading.Lock()
        self._keys = self._ask()
        self.generation = 1
        super().__init__(self._keys.key, self._keys.secret, self._keys.token, method="ckptkit")

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        with self._lock:
            expires = self._keys.expires
            if expires is not None and self._now() >= expires - _EARLY:
                try:
                    self._take(self._ask())
                except StorageError as error:
                    if self._now() >= expires:
                        raise
                    _log.warning("%s. The previous keys are used until %s", error, expires)
            return ReadOnlyCredentials(self._keys.key, self._keys.secret, self._keys.token)

    def renew(self, used: int) -> bool:
        """Ask the source, unless the keys changed since generation ``used``; returns whether they differ now."""
        with self._lock:
            if self.generation == used:
                try:
                    self._take(self._ask())
                except StorageError as error:
                    raise Transient(str(error)) from error  # it may succeed later
            return self.generation != used

    def _take(self, keys: Keys) -> None:
        if keys != self._keys:
            self._keys = keys
            self.generation += 1

    def _ask(self) -> Keys:
        try:
            keys = self._source()
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 - from the user's function: it says nothing about the storage
            at = traceback.extract_tb(error.__traceback__)[-1]
            failure = f"{type(error).__name__} at {at.filename}:{at.lineno}, in {at.name}"
        else:
            learn(keys.secret, keys.token)
            return keys
        # Outside of the handler, so that no traceback links to the error: its text may hold an unregistered secret.
        raise StorageError(
            f"credentials= failed: {failure}. The error text is omitted because it may contain a key; call the "
            "function yourself to see it"
        )


class _Provider(CredentialProvider):  # type: ignore[misc]  # botocore ships no types
    METHOD = "ckptkit"

    def __init__(self, credentials: RenewedCredentials) -> None:
        super().__init__()
        self._credentials = credentials

    def load(self) -> RenewedCredentials:
        return self._credentials


def use(session: Session, credentials: RenewedCredentials) -> None:
    """Make ``session`` sign with ``credentials`` rather than with keys that it would find itself."""
    resolver: Any = session.get_component("credential_provider")
    resolver.providers.insert(0, _Provider(credentials))
