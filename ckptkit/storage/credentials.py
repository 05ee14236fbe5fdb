"""Access keys that may change while a job runs.

Guarantees: a request is signed with the newest keys that the source gives; the source is asked again shortly before
keys expire and when the server says that they have. Any thread; the source is called by one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from botocore.credentials import CredentialProvider, Credentials, ReadOnlyCredentials
from botocore.session import Session

from ckptkit.errors import StorageError

_EARLY = timedelta(minutes=5)


@dataclass(frozen=True)
class Keys:
    """What a request is signed with.

    Attributes:
        key: The access key.
        secret: The secret key.
        token: The session token of temporary keys.
        expires: When they end, with a time zone; None if not known.
    """

    key: str
    secret: str
    token: str | None = None
    expires: datetime | None = None

    @classmethod
    def of(cls, given: object) -> Keys:
        """From what a user's function returned: `Keys`, or a mapping with their names.

        Raises:
            StorageError: If it is neither.
        """
        if isinstance(given, Keys):
            return given
        known = {"key", "secret", "token", "expires"}
        if not isinstance(given, Mapping) or not {"key", "secret"} <= set(given) <= known:
            raise StorageError("credentials= must return a mapping with key, secret and perhaps token and expires")
        keys = cls(**given)
        if keys.expires is not None and (not isinstance(keys.expires, datetime) or keys.expires.tzinfo is None):
            raise StorageError("what credentials= returns as expires must be a datetime with a time zone")
        return keys

    def __repr__(self) -> str:
        return f"Keys(key={self.key[:4]}..., expires={self.expires})"  # no secret reaches a log


class RenewedCredentials(Credentials):  # type: ignore[misc]  # botocore ships no types
    """Credentials that botocore asks for with every request.

    Args:
        source: Gives keys; called now, and when they are about to expire or have.
        now: The clock.
    """

    def __init__(
        self,
        source: Callable[[], Keys],
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._source = source
        self._now = now
        self._lock = threading.Lock()
        self._keys = source()
        super().__init__(self._keys.key, self._keys.secret, self._keys.token, method="ckptkit")

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """The keys to sign the next request with."""
        with self._lock:
            if self._keys.expires is not None and self._now() >= self._keys.expires - _EARLY:
                self._keys = self._source()
            return ReadOnlyCredentials(self._keys.key, self._keys.secret, self._keys.token)

    def renew(self) -> bool:
        """Ask the source; returns whether it gave others than before."""
        with self._lock:
            before, self._keys = self._keys, self._source()
            return before != self._keys


class _Provider(CredentialProvider):  # type: ignore[misc]  # botocore ships no types
    METHOD = "ckptkit"

    def __init__(self, credentials: RenewedCredentials) -> None:
        super().__init__()
        self._credentials = credentials

    def load(self) -> RenewedCredentials:
        return self._credentials


def use(session: Session, credentials: RenewedCredentials) -> None:
    """Have ``session`` sign with ``credentials``, before anything that it would find itself."""
    resolver: Any = session.get_component("credential_provider")
    resolver.providers.insert(0, _Provider(credentials))
