"""Sorts the error that ended training by what a supervisor does about it. Pure, any thread."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Literal

from ckptkit.core.text import is_about_data
from ckptkit.errors import (
    CheckpointNotFoundError,
    FormatVersionError,
    ResumeError,
    SaveFailedError,
    StaleAttemptError,
    StateMismatchError,
    StorageError,
)

Category = Literal["overtaken", "disk-full", "out-of-memory", "storage", "refused", "data", ""]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_MEMORY = ("std::bad_alloc", "Cannot allocate memory", "Allocate memory failed", "Memory not enough")


def category_of(error: BaseException) -> Category:
    """Return what the error, or one that caused it, means for the next start; empty if that is not known."""
    chain = list(_chain(error))
    if any(isinstance(one, StaleAttemptError) for one in chain):
        return "overtaken"
    if any(isinstance(one, OSError) and one.errno in _FULL for one in chain):
        return "disk-full"
    if any(isinstance(one, MemoryError) or _is_about_memory(one) for one in chain):
        return "out-of-memory"
    if any(isinstance(one, StorageError | SaveFailedError) for one in chain):
        return "storage"
    refused = ResumeError | StateMismatchError | FormatVersionError | CheckpointNotFoundError
    if isinstance(error, refused):
        return "refused"
    return "data" if is_about_data(error) else ""


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
