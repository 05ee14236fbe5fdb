"""Reads once more what looks corrupt: a memory, a cable or a network may change a bit of one answer. Any thread."""

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


def reread_if_corrupt(read: Callable[[], _T], reread: Callable[[], _T] | None = None) -> _T:
    """Return what ``read`` returns; if it finds something corrupt, what ``reread``, or ``read`` once more, returns."""
    try:
        return read()
    except CorruptCheckpointError as error:
        result = (reread or read)()
        _log.warning(
            "%s. It was read once more, and is intact: nothing is lost. If this comes again, test the memory of this "
            "machine, its disk and its network, which change bytes on their way.",
            error,
        )
        return result


def read_document(storage: Storage, key: str, model: type[Model]) -> Model:
    return reread_if_corrupt(lambda: decode(storage.read(key, MAX_SEALED_BYTES), model, key))
