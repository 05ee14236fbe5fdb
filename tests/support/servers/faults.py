"""What may go wrong between a client and an S3 server, as objects with a schedule and a counter.

The manner is that of `ckptkit.testing.faults`: a fault names the requests that count, from which one on it strikes, and
``fired`` says how often it really happened. A fault belongs to one `support.servers.proxy.FaultProxy`.
"""

import fnmatch
import threading
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

Action = Literal[
    "500",
    "503",
    "slow_down",
    "denied",
    "expired",
    "quota",
    "reset_before",
    "reset_mid_body",
    "reset_after",
    "truncate",
    "stall_request",
    "stall_body",
]


class Refusal(NamedTuple):
    """An error that the proxy gives in the server's place, which never hears of the request."""

    status: str
    code: str
    message: str

    def document(self) -> bytes:
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{self.code}</Code><Message>{self.message}</Message>"
            "<RequestId>fault</RequestId><HostId>proxy</HostId></Error>"
        )
        return text.encode()


REFUSALS: Mapping[str, Refusal] = {
    "500": Refusal("500 Internal Server Error", "InternalError", "We encountered an internal error. Please try again."),
    "503": Refusal("503 Service Unavailable", "ServiceUnavailable", "Service is unable to handle request."),
    "slow_down": Refusal("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    "denied": Refusal("403 Forbidden", "AccessDenied", "Access Denied"),
    "expired": Refusal("400 Bad Request", "ExpiredToken", "The provided token has expired."),
    "quota": Refusal("403 Forbidden", "QuotaExceeded", "The quota of the bucket is used up."),
}


class Request(NamedTuple):
    method: str
    path: str
    query: str
    action: Action | None
    headers: Mapping[str, str]


class RequestFault:
    def __init__(
        self,
        action: Action,
        *,
        method: str | Collection[str] | None = None,
        path: str = "*",
        nth: int = 1,
        times: int | None = 1,
    ) -> None:
        self.action: Action = action
        self._methods = None if method is None else frozenset([method] if isinstance(method, str) else method)
        self._path = path
        self._nth = nth
        self._times = times
        self._lock = threading.Lock()
        self._seen = 0
        self._struck = 0
        self.fired = 0

    def strikes(self, method: str, target: str) -> bool:
        """Whether this fault is to happen to the request; counts it if it matches, so ask once per request."""
        if self._methods is not None and method not in self._methods:
            return False
        if not fnmatch.fnmatchcase(target, self._path):
            return False
        with self._lock:
            self._seen += 1
            if self._seen < self._nth or (self._times is not None and self._struck >= self._times):
                return False
            self._struck += 1
            return True

    def happened(self) -> None:
        with self._lock:
            self.fired += 1

    def __repr__(self) -> str:
        methods = "*" if self._methods is None else ",".join(sorted(self._methods))
        return f"RequestFault({self.action} {methods} {self._path} #{self._nth}, fired {self.fired})"
