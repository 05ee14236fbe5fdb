"""Sorts the error that ended training by what a supervisor does about it. Pure, any thread."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Literal

from ckptkit.core.text import is_about_data, message_of
from ckptkit.errors import (
    CheckpointNotFoundError,
    FormatVersionError,
    ResumeError,
    SaveFailedError,
    StaleAttemptError,
    StateMismatchError,
    StorageError,
)

Category = Literal["overtaken", "disk-full", "out-of-memory", "storage", "refused", "outage", "data", ""]
Request = Literal["asked", "terminated", "child-died"]  # by somebody; by SIGTERM; by SIGTERM after a child has died

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OUTAGES = (
    *(errno.ETIMEDOUT, errno.EIO, errno.ESTALE, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EREMOTEIO),
)
_OUTAGE_IN_PIPELINE = re.compile(
    rf"(TimeoutError|Connection\w*Error)\b|OSError: \[Errno ({'|'.join(map(str, _OUTAGES))})\]"
)
_NO_MEMORY = ("std::bad_alloc", "Cannot allocate memory", "Allocate memory failed", "Memory not enough")


def category_of(error: BaseException) -> Category:
    """Return what the error, or one that caused it, means for the next start; empty if that is not known."""
    chain = list(_chain(error))
    refused = ResumeError | StateMismatchError | FormatVersionError | CheckpointNotFoundError
    holds: dict[Category, bool] = {
        "overtaken": any(isinstance(one, StaleAttemptError) for one in chain),
        "disk-full": any(isinstance(one, OSError) and one.errno in _FULL for one in chain),
        "out-of-memory": any(isinstance(one, MemoryError) or _is_about_memory(one) for one in chain),
        "storage": any(isinstance(one, StorageError | SaveFailedError) for one in chain),
        "refused": isinstance(error, refused),
        "outage": any(map(_is_outage, chain)),
        "data": is_about_data(error),
    }
    return next((category for category, is_it in holds.items() if is_it), "")


def _is_outage(error: BaseException) -> bool:
    """Return whether something outside of this machine did not answer, or a disk failed; later it may."""
    if isinstance(error, OSError):
        return isinstance(error, ConnectionError | TimeoutError) or error.errno in _OUTAGES
    return _OUTAGE_IN_PIPELINE.match(message_of(error)) is not None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_about_memory(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and any(one in str(error) for one in _NO_MEMORY)
