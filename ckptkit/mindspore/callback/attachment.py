"""Gives the training that other code starts to a checkpoint callback: replaces ``Model.train`` and ``Model.fit``.

Guarantees: the next ``Model.train`` or ``Model.fit`` of this process is resumed, positioned and saved as by
`CheckpointCallback.train`, or raises before its first batch. No training goes unsaved in silence: a second one is
refused, and it is said if none came. A training that `CheckpointCallback.resume` has prepared starts as it is called.
Other ways of training (a loop, a cell that is called) are not seen. Main thread only.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from mindspore.train import Model
from typing_extensions import Self

from ckptkit.core.progress import ResumePoint
from ckptkit.errors import ResumeError
from ckptkit.manager.at_exit import AT_EXIT, LastCall

_log = logging.getLogger("ckptkit")

_STARTS = ("train", "fit")  # methods of Model
_attached: list[Attachment] = []  # one at most: there is one Model class in the process


class Attachment:
    """Gives the next training of the process to a callback, until `detach` or the end of a ``with`` block.

    Attributes:
        point: Where the training began; None before it.

    Args:
        root: The callback's run root, for messages.
        run: Gets a function that starts the training, its model, epochs, dataset and callbacks. Resumes, then calls
            the function with ``callbacks=`` and ``initial_epoch=``.
        is_prepared: Whether the callback has a training already, which it prepared itself.

    Raises:
        ResumeError: If another callback is attached.
    """

    def __init__(self, root: str, run: Callable[..., ResumePoint], is_prepared: Callable[[], bool]) -> None:
        self._root = root
        self._run = run
        self._is_prepared = is_prepared
        if _attached:
            raise ResumeError(
                f"a callback for {_attached[0]._root} is attached already, and a training has one run root. Call "
                "detach() on what its attach() returned, or use `with ckpt.attach():`"
            )
        self.point: ResumePoint | None = None
        self._called = False
        self._before = {name: getattr(Model, name) for name in _STARTS}
        self._last_call = LastCall(self._say_if_unused)
        for name, start in self._before.items():
            setattr(Model, name, self._given_to_the_callback(name, start))
        AT_EXIT.add(self._last_call)
        _attached.append(self)

    def detach(self) -> None:
        """Give ``Model`` its own methods back; does nothing the second time."""
        if self in _attached:
            for name, start in self._before.items():
                setattr(Model, name, start)
            AT_EXIT.discard(self._last_call)
            _attached.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()
        if error is None and not self._called:
            raise ResumeError(self._unused())

    def _given_to_the_callback(self, name: str, start: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(start)

        @functools.wraps(start)
        def attached(*args: Any, **kwargs: Any) -> Any:
            self._called = True
            if self._is_prepared():
                return start(*args, **kwargs)
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            return self._start(name, start, given.arguments)

        return attached

    def _start(self, name: str, start: Callable[..., Any], given: dict[str, Any]) -> None:
        if self.point is not None:
            raise ResumeError(
                f"Model.{name} is called a second time, but {self._root} holds the training of the first call. Call "
                "detach() after it and attach a callback with another root, or make one call with all epochs"
            )
        if given["initial_epoch"]:
            raise ResumeError(
                f"this training begins at epoch {given['initial_epoch']} by itself, but the checkpoint decides that: "
                "turn off the resume of the code that calls Model, and leave initial_epoch out"
            )
        self.point = self._run(
            functools.partial(_called_with, start, given),
            *(given["self"], given["epoch"], given["train_dataset"], given["callbacks"]),
        )

    def _unused(self) -> str:
        return (
            f"nothing called Model.train or Model.fit while {self._root} was attached, so nothing was saved. If the "
            "training is a loop of its own, use CheckpointManager as docs/exactness.md shows for loops"
        )

    def _say_if_unused(self) -> None:
        if not self._called and getattr(sys, "last_value", None) is None:  # else an error has ended the script
            _log.error(self._unused())


def _called_with(start: Callable[..., Any], given: dict[str, Any], **changed: Any) -> None:
    start(**{**given, **changed})
