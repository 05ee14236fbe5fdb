"""Reads again what looks corrupt, because a memory, a network or a cable may change a bit of one answer.

Guarantees: nothing is called corrupt that is intact when it is read a second time. What is corrupt costs one more
reading of that file, or of that part of it. Threads: any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.document_json import Model, decode
from ckptkit.format.documents import MAX_SEALED_BYTES
from ckptkit.storage import Storage

_T = TypeVar("_T")
_log = logging.getLogger("ckptkit")


def reread_if_corrupt(read: Callable[[], _T], again: Callable[[], _T] | None = None) -> _T:
    """Return what ``read`` returns; if it finds something corrupt, call ``again``, or ``read`` once more, instead."""
    try:
        return read()
    except CorruptCheckpointError as error:
        result = (again or read)()
        _log.warning(
            "%s. It was read once more, and is intact: nothing is lost. The memory of this machine, the network or the "
            "disk changes bytes on their way; if this comes again, look for the faulty part.",
            error,
        )
        return result


def read_document(storage: Storage, key: str, model: type[Model]) -> Model:
    """Read and parse a sealed document.

    Raises:
        FileNotFoundError: If there is none.
        CorruptCheckpointError: If it does not parse; names the file.
        FormatVersionError: If it was written by a newer format.
    """
    return reread_if_corrupt(lambda: decode(storage.read(key, MAX_SEALED_BYTES), model, key))
