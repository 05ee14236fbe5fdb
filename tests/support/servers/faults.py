"""What may go wrong between a client and an S3 server, as objects with a schedule and a counter.

A fault belongs to one `support.servers.proxy.FaultProxy`.
"""

import threading
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from ckptkit.testing.faults import Fault

METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
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


class RequestFault(Fault):
    """What happens to requests of the methods whose target matches ``path``; `Fault` has the rest of the schedule."""

    def __init__(
        self, action: Action, *, method: str | Collection[str] | None = None, path: str = "*", **schedule: Any
    ) -> None:
        methods = [method] if isinstance(method, str) else method
        super().__init__(action, operations=methods or METHODS, key=path, **schedule)
        self.action = action
        self._lock = threading.Lock()

    def happened(self) -> None:
        with self._lock:
            self.fired += 1
