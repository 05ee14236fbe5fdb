"""Says what a failed request means, and repeats it while that may be temporary, with backoff and full jitter.

Sources: the error codes of the Amazon S3 API reference ("Error responses") and of Huawei OBS ("OBS server-side error
codes"). Servers differ in their codes, so the HTTP status decides where the code is unknown. An error is never taken
for an answer; only NoSuchKey for a requested key means absence. No random number is drawn from Python's own generator,
whose state belongs to training. The log reports trouble that lasts, and its end. Any thread may call it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn, TypeVar

from botocore import exceptions as botocore
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from ckptkit.core.worker import Latch
from ckptkit.errors import StorageError

_log = logging.getLogger("ckptkit")
_T = TypeVar("_T")

_FIRST_DELAY_SECONDS = 0.2
_LONGEST_DELAY_SECONDS = 15.0
_TELL_AFTER_SECONDS = 5.0
_TELL_EVERY_SECONDS = 60.0


class Transient(Exception):  # noqa: N818 - a temporary condition, not an error of this program
    """Reports a temporary failure, after which the request is sent again; ``__cause__`` is the backend's error."""


@dataclass(frozen=True)
class Patience:
    """Holds the limits of one request, of all its tries, and of these until the first answer of an endpoint."""

    request: timedelta = timedelta(minutes=2)
    retrying: timedelta = timedelta(minutes=5)
    first: timedelta = timedelta(seconds=30)  # a wrong endpoint is then more likely than an outage


class Retry:
    """Repeats requests to one storage; clock, sleep and random generator are arguments for tests."""

    def __init__(
        self,
        patience: Patience,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._patience = patience
        self.monotonic = monotonic
        self._wait = wait
        self._answered = False
        self._rng = rng or random.Random()  # noqa: S311 - delays are not secret
        self._lock = threading.Lock()
        self._since: float | None = None
        self._told_at: float | None = None

    def call(self, what: str, request: Callable[[float], _T], stop: Latch | None = None) -> _T:
        """Send ``request`` until it succeeds, fails permanently, or time runs out, sooner before the first answer.

        Args:
            what: The operation, for messages: "could not {what}".
            request: Called with the time of ``monotonic`` by which it must end.
            stop: When it is open, a failed request is not sent again.

        Raises:
            StorageError: If time ran out or ``stop`` is open. Other exceptions of ``request`` pass through unchanged.
        """
        patience = (self._patience.retrying if self._answered else self._patience.first).total_seconds()
        until = self.monotonic() + patience
        wait = self._wait or (stop or Latch()).wait
        tries = 0
        while True:
            tries += 1
            begun = self.monotonic()
            try:
                answer = request(begun + self._patience.request.total_seconds())
            except Transient as trouble:  # kept nowhere: its traceback holds the request's memory
                longest = min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** min(tries, 16))
                seconds = self._rng.uniform(0.0, longest)
                if self.monotonic() + seconds >= until or (stop is not None and stop.is_open):
                    raise StorageError(
                        f"could not {what}: {trouble}. ckptkit tried {tries} times within {patience:.0f} s. Check that "
                        "endpoint_url is right and the storage is reachable, then try again"
                    ) from trouble.__cause__
                self._tell_of(what, trouble, begun)
            except (FileNotFoundError, FileExistsError):
                self._tell_of_recovery()  # these are answers, too
                raise
            else:
                self._tell_of_recovery()
                return answer
            wait(seconds)

    def _tell_of(self, what: str, trouble: Transient, begun: float) -> None:
        now = self.monotonic()
        with self._lock:
            self._since = begun if self._since is None else self._since
            lasted = now - self._since
            silent = now - (self._since if self._told_at is None else self._told_at)
            if silent < (_TELL_AFTER_SECONDS if self._told_at is None else _TELL_EVERY_SECONDS):
                return
            self._told_at = now
        _log.warning("the storage has failed for %.0f s; retrying (could not %s: %s)", lasted, what, str(trouble))

    def _tell_of_recovery(self) -> None:
        self._answered = True
        if self._since is None:  # the usual case, without the lock
            return
        with self._lock:
            since, was_reported = self._since, self._told_at is not None
            self._since = self._told_at = None
        if was_reported and since is not None:
            _log.warning("the storage answers again, after %.0f s", self.monotonic() - since)


_ABSENT = {"NoSuchKey"}  # nothing else: a gateway sends its own 404 pages
_TAKEN = {"PreconditionFailed", "412"}
_PASSING = {
    *("OperationAborted", "RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"),
    *("BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody"),  # the body was damaged in transit
    "ConditionalRequestConflict",  # 409: another conditional write of the key is under way
}
EXPIRED = {"ExpiredToken", "TokenRefreshRequired", "InvalidToken"}

_PASSING_KINDS = (
    botocore.ConnectionError,
    botocore.HTTPClientError,  # also raised for a deadline inside a body
    botocore.IncompleteReadError,
    botocore.ResponseStreamingError,
    ResponseParserError,  # an answer that was cut off
)

_HINTS = {
    "NoSuchBucket": "There is no such bucket at this endpoint: check its name, the endpoint and the region",
    "AccessDenied": "The credentials do not allow this: grant permission to list, read, write and delete here",
    "AllAccessDisabled": "The bucket is locked, often for unpaid bills",
    "InvalidAccessKeyId": "The access key is unknown at this endpoint: check it, and that it belongs to this cloud",
    "SignatureDoesNotMatch": "The secret key does not belong to the access key, or the region is wrong",
    "ExpiredToken": "The session token has expired: get a new one, or give credentials= a function",
    "TokenRefreshRequired": "The session token has expired: get a new one, or give credentials= a function",
    "InvalidToken": "The session token is invalid or no longer valid: get a new one, or give credentials= a function",
    "RequestTimeTooSkewed": "This machine's clock is wrong by more than the storage accepts: set it",
    "PermanentRedirect": "The bucket is in another region: give its endpoint",
    "AuthorizationHeaderMalformed": "The region is wrong: export AWS_DEFAULT_REGION=..., or OBS_REGION for obs://",
    "QuotaExceeded": "The quota is used up: free some space, or request a larger quota",
    "InsufficientStorageSpace": "The quota is used up: free some space, or request a larger quota",  # OBS
    "InArrearOrInsufficientBalance": "The account is in arrears",  # OBS
    "EntityTooLarge": "The file is larger than the storage accepts",
    "NoSuchKey": "The endpoint may require the other addressing style, s3.addressing_style in ~/.aws/config",
    "VirtualHostDomainRequired": "This endpoint requires virtual-hosted addressing, the default of obs://",  # OBS
}
_STATUS_HINTS = {
    401: "The credentials were refused: check them, and the endpoint",
    403: "The storage refused the request: check the credentials and their permissions",
    507: "The storage is full: free some space",
}


def code_of(error: BaseException | None) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def raise_as_ours(error: Exception, what: str, *, may_be_absent: bool) -> NoReturn:
    """Raise `Transient` if another try may help, else the exception that ``error`` stands for, or itself."""
    if isinstance(error, ClientError):
        code, status = code_of(error), status_of(error)
        if code in _ABSENT and may_be_absent:
            raise FileNotFoundError(f"could not {what}: there is no such file") from error
        if code in _TAKEN or status == 412:
            raise FileExistsError(f"could not {what}: it exists") from error
        unknown = status == 404 and not code.startswith("NoSuch")  # not the storage's own code
        if code in _PASSING or status == 429 or unknown or (status >= 500 and status not in (501, 507)):
            raise Transient(str(error)) from error
        hint = _HINTS.get(code) or _STATUS_HINTS.get(status, "")
        raise StorageError(f"could not {what}: {error}{f'. {hint}' if hint else ''}") from error
    if isinstance(
        error, botocore.NoCredentialsError | botocore.PartialCredentialsError | botocore.CredentialRetrievalError
    ):
        raise StorageError(
            f"could not {what}: {str(error).rstrip('.')}. Set them: export AWS_ACCESS_KEY_ID=... "
            'AWS_SECRET_ACCESS_KEY=...; or give storage_options={"key": ..., "secret": ...}'
        ) from error
    if isinstance(error, botocore.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        raise StorageError(
            f"could not {what}: {error}. Give the authority's certificate: export AWS_CA_BUNDLE=FILE"
        ) from error
    if isinstance(error, _PASSING_KINDS):
        raise Transient(str(error)) from error
    if isinstance(error, botocore.BotoCoreError):
        raise StorageError(f"could not {what}: {error}") from error
    raise error
