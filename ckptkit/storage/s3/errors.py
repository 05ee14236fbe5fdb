"""Classifies failed S3 requests: absent, exists already, temporary, or permanent with a hint on what to change.

Sources: the error codes of the Amazon S3 API reference ("Error responses") and of Huawei OBS ("OBS server-side error
codes"). Servers differ in their codes, so the HTTP status decides where the code is unknown. An error is never taken
for an answer; only the code NoSuchKey for a requested key means absence.
"""

from __future__ import annotations

from typing import NoReturn

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # botocore's own, which is not the builtin one
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from ckptkit.errors import StorageError
from ckptkit.storage.s3.retry import Transient

_ABSENT = {"NoSuchKey"}  # nothing else: a gateway sends its own 404 pages
_TAKEN = {"PreconditionFailed", "412"}
_PASSING = {
    "ConditionalRequestConflict",  # 409: another conditional write of the key is under way
    "OperationAborted",
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "BadDigest",  # the body was damaged in transit
    "XAmzContentSHA256Mismatch",
    "IncompleteBody",
}
_EXPIRED = {"ExpiredToken", "TokenRefreshRequired", "InvalidToken"}

_PASSING_KINDS = (
    ConnectionError,
    HTTPClientError,  # also raised for a deadline inside a body
    IncompleteReadError,
    ResponseStreamingError,
    ResponseParserError,  # an answer that was cut off
)

_HINTS = {
    "NoSuchBucket": "There is no such bucket at this endpoint: check its name, the endpoint and the region",
    "AccessDenied": "The credentials do not allow this: grant permission to list, read, write and delete here",
    "AllAccessDisabled": "The bucket is locked, often for unpaid bills",
    "InvalidAccessKeyId": "The access key is unknown at this endpoint: check the key, and that it belongs to this "
    "cloud",
    "SignatureDoesNotMatch": "The secret key does not belong to the access key, or the region is wrong",
    "ExpiredToken": "The session token has expired: get a new one, or give credentials= a function",
    "TokenRefreshRequired": "The session token has expired: get a new one, or give credentials= a function",
    "InvalidToken": "The session token is invalid or no longer valid: get a new one, or give credentials= a function",
    "RequestTimeTooSkewed": "This machine's clock is wrong by more than the storage accepts: set it",
    "PermanentRedirect": "The bucket is in another region: give its endpoint",
    "AuthorizationHeaderMalformed": "The region is wrong: give region_name in client_kwargs",
    "QuotaExceeded": "The quota is used up: free some space, or request a larger quota",
    "InsufficientStorageSpace": "The quota is used up: free some space, or request a larger quota",  # OBS
    "InArrearOrInsufficientBalance": "The account is in arrears",  # OBS
    "EntityTooLarge": "The file is larger than the storage accepts",
    "NoSuchKey": "The endpoint may require the other addressing style: config_kwargs={'s3': {'addressing_style': ...}}",
    "VirtualHostDomainRequired": "This endpoint requires virtual-hosted addressing, the default of obs://",  # OBS
}
_STATUS_HINTS = {
    401: "The credentials were refused: check them, and the endpoint",
    403: "The storage refused the request: check the credentials and their permissions",
    507: "The storage is full: free some space",
}


def code_of(error: BaseException) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_expired(error: BaseException) -> bool:
    """Return whether newer credentials would help."""
    return code_of(error) in _EXPIRED


def raise_as_ours(error: Exception, what: str, *, may_be_absent: bool) -> NoReturn:
    """Raise `Transient` if another try may help, else the exception that ``error`` stands for, or itself."""
    if isinstance(error, ClientError):
        _raise_answer(error, what, may_be_absent)
    if isinstance(error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError):
        raise StorageError(
            f"could not {what}: {str(error).rstrip('.')}. Set them: export AWS_ACCESS_KEY_ID=... "
            'AWS_SECRET_ACCESS_KEY=...; or give storage_options={"key": ..., "secret": ...}'
        ) from error
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        raise StorageError(
            f"could not {what}: {error}. Give the authority's certificate with client_kwargs={{'verify': FILE}}"
        ) from error
    if isinstance(error, _PASSING_KINDS):
        raise Transient(str(error)) from error
    if isinstance(error, BotoCoreError):
        raise StorageError(f"could not {what}: {error}") from error
    raise error


def _raise_answer(error: ClientError, what: str, may_be_absent: bool) -> NoReturn:
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
