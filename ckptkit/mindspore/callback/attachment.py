"""Gives the training that other code starts to a checkpoint callback: replaces ``Model.train`` and ``Model.fit``.

Guarantees: the next ``Model.train`` or ``Model.fit`` of this process is resumed, positioned and saved as by
`CheckpointCallback.train`, or raises before its first batch. No training by `Model` goes unsaved in silence: a second
one, also one within the first, is refused, and it is said if none came. A call that has the callback among its
callbacks, after `CheckpointCallback.resume`, goes through as it is. Other ways of training (a loop, a cell that is
called) are not seen. Main thread only.
"""

from __future__ import annotations

import abc
import functools
import inspect
import logging
import multiprocessing
import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from mindspore.train import Callback, Model
from typing_extensions import Self

from ckptkit.core.progress import ResumePoint
from ckptkit.errors import ResumeError
from ckptkit.manager.process import AT_EXIT, LastCall

_log = logging.getLogger("ckptkit")

_STARTS = ("train", "fit")  # methods of Model
_ARGUMENTS = ("epoch", "train_dataset", "callbacks", "initial_epoch")  # of both
_MISSING = object()
ATTACHED: list[Attachment] = []  # one at most: there is one Model class in the process


class Replaced:
    """Attributes of an object that have other values until `undo`."""

    def __init__(self, owner: Any, **values: Any) -> None:
        self._owner = owner
        self._before = {name: vars(owner).get(name, _MISSING) for name in values}
        for name, value in values.items():
            setattr(owner, name, value)

    def undo(self) -> None:
        before, self._before = self._before, {}
        for name, value in before.items():
            if value is _MISSING:
                delattr(self._owner, name)
            else:
                setattr(self._owner, name, value)


class ExpectedTraining(abc.ABC):
    """Waits for the next training, until `detach` or the end of a ``with`` block, and says if none came.

    Attributes:
        point: Where the training began; None before it.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self.point: ResumePoint | None = None
        self._called = False
        self._last_call = LastCall(self._say_if_unused)

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


class Attachment(ExpectedTraining):
    """Gives the next training of the process to a callback, until `detach` or the end of a ``with`` block."""

    def __init__(
        self,
        root: str,
        callback: Callback,
        run: Callable[..., ResumePoint],
        prepared: Callable[[], ResumePoint | None],
    ) -> None:
        # A call that has `callback` among its callbacks goes through, if `prepared` returns where it begins: it was
        # prepared by hand. For any other, `run` resumes and gets what starts it, with its model, epochs and dataset.
        if ATTACHED:
            raise ResumeError(
                f"a callback for {ATTACHED[0]._root} is attached already, and a training has one run root. Call "
                "detach() on what its attach() returned, or use `with ckpt.attach():`"
            )
        self._callback = callback
        self._run = run
        self._prepared = prepared
        self._runs = False
        starts = {name: self._given_to_the_callback(name, getattr(Model, name)) for name in _STARTS}
        self._replaced = Replaced(Model, **starts)
        ATTACHED.append(self)
        super().__init__(root)

    def detach(self) -> None:
        """Give ``Model`` its own methods back; does nothing the second time."""
        if self in ATTACHED:
            self._replaced.undo()
            ATTACHED.remove(self)
            super().detach()

    def _given_to_the_callback(self, name: str, start: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(start)
        if not signature.parameters.keys() >= {*_ARGUMENTS}:
            raise ResumeError(
                f"Model.{name} was replaced by a function that does not name the arguments {', '.join(_ARGUMENTS)}, so "
                "what is trained is not known. Attach the callback before that"
            )

        @functools.wraps(start)
        def attached(*args: Any, **kwargs: Any) -> None:
            self._called = True
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            model, *_ = args
            self._refuse_second(name)
            self._runs = True
            try:
                self._start(functools.partial(start, model), model, dict([*given.arguments.items()][1:]))
            finally:
                self._runs = False

        return attached

    def _refuse_second(self, name: str) -> None:
        if self.point is not None or self._runs:
            which = "within the first call" if self._runs else "a second time"
            raise ResumeError(
                f"Model.{name} is called {which}, but {self._root} holds the training of the first call. Call detach() "
                "before it, or attach a callback with another root after the first; or make one call with all epochs"
            )

    def _start(self, start: Callable[..., Any], model: Model, given: dict[str, Any]) -> None:
        others = as_list(given["callbacks"])
        point = self._prepared()
        if point is not None and self._callback in others:
            start(**given)
            self.point = point
            return
        if given["initial_epoch"]:
            raise ResumeError(
                f"this training begins at epoch {given['initial_epoch']} by itself, but the checkpoint decides that: "
                "turn off the resume of the code that calls Model, and leave initial_epoch out"
            )

        def started(**changed: Any) -> None:
            start(**{**given, **changed})

        self.point = self._run(started, model, given["epoch"], given["train_dataset"], others)

    def _unused(self) -> str:
        return (
            f"nothing in this process called Model.train or Model.fit while {self._root} was attached, so nothing was "
            "saved. If the training is a loop of its own, use ckptkit.loop, as docs/guide.md shows"
        )


def as_list(callbacks: Callback | Iterable[Callback] | None) -> list[Callback]:
    return [callbacks] if isinstance(callbacks, Callback) else list(callbacks or [])
