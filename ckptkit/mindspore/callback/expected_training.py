"""Expects a training that other code starts, by `ExpectedTraining`: says if none came. Main thread only."""

from __future__ import annotations

import abc
import logging
import multiprocessing
import sys
from types import TracebackType

from typing_extensions import Self

from ckptkit.core.progress import ResumePoint
from ckptkit.errors import ResumeError
from ckptkit.manager.process.at_exit import AT_EXIT, LastCall

_log = logging.getLogger("ckptkit")


class ExpectedTraining(abc.ABC):
    """Waits for the next training, until `detach` or the end of a ``with`` block.

    Attributes:
        point: Where the training began; None before it.

    Args:
        root: The callback's run root, for messages.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self.point: ResumePoint | None = None
        self._called = False
        self._last_call = LastCall(self._say_if_unused)
        AT_EXIT.add(self._last_call)

    @abc.abstractmethod
    def detach(self) -> None:
        """Put back what was replaced; does nothing the second time."""
        AT_EXIT.discard(self._last_call)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()
        if error is None and not self._called:
            raise ResumeError(self._unused())

    @abc.abstractmethod
    def _unused(self) -> str:
        """Return what is wrong if no training came."""

    def _say_if_unused(self) -> None:
        is_worker = multiprocessing.parent_process() is not None  # which may run the lines of the script again
        if not self._called and not is_worker and getattr(sys, "last_value", None) is None:  # no error ended the script
            _log.error(self._unused())
