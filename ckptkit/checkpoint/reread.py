"""Reads what looks corrupt once more: a memory, a cable or a network may change a bit of one answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ckptkit.errors import CorruptCheckpointError

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
