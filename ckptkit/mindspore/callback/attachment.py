"""Gives the training that other code starts to a checkpoint callback: replaces ``Model.train`` and ``Model.fit``.

Guarantees: the next call of them in this process is resumed, positioned and saved as by `CheckpointCallback.train`, or
raises before its first batch. No such training goes unsaved in silence: a second one, also one within the first, is
refused, and it is said if none came. A call that has the callback among its callbacks, after
`CheckpointCallback.resume`, goes through as it is. Other ways of training (a loop, a cell that is called) are not seen.
Main thread only.
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

_ARGUMENTS = ("epoch", "train_dataset", "callbacks", "initial_epoch")  # of ``Model.train`` and ``Model.fit``
_MISSING = object()
# Attribute beside the methods that an attachment has replaced, which others may replace once more: tells its root.
_ROOT = "_ckptkit_root"


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


def root_attached_to(owner: Any) -> str | None:
    """Return the run root of the callback that is attached to `Model` or to a trainer; None without one."""
    root: Callable[[], str] | None = vars(owner).get(_ROOT)
    return None if root is None else root()


class Attachment(abc.ABC):
    """Gives the next training to a callback, until `detach` or the end of a ``with`` block.

    Attributes:
        point: Where the training began; None before its end.

    Args:
        root: The callback's run root, for messages.
        owner: Has the methods; a class or an object.
        names: The methods that start a training.

    Raises:
        ResumeError: If a callback is attached already.
    """

    def __init__(self, root: str, owner: Any, *names: str) -> None:
        self._root = root
        self._kind = (owner if isinstance(owner, type) else type(owner)).__name__
        if (other := root_attached_to(owner)) is not None:
            raise ResumeError(
                f"a callback for {other} is attached to this {self._kind} already, and a training has one run root. "
                "Call detach() on what its attach() returned, or use `with ckpt.attach():`"
            )
        self.point: ResumePoint | None = None
        self._methods = " or ".join(f"{self._kind}.{name}" for name in names)
        self._is_called = self._runs = False
        self._last_call = LastCall(self._say_if_unused)
        methods = {name: self._attached(name, getattr(owner, name)) for name in names}
        self._replaced = Replaced(owner, **methods, **{_ROOT: lambda: self._root})

    def _attached(self, name: str, start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def attached(*args: Any, **kwargs: Any) -> Any:
            self._is_called = True
            if self._runs or self.point is not None:
                which = "within the first call" if self._runs else "a second time"
                raise ResumeError(
                    f"{self._kind}.{name} is called {which}, but {self._root} holds the training of the first call. "
                    "Call detach() before it, or attach a callback with another root after the first; or make one call "
                    "with all epochs"
                )
            self._runs = True
            try:
                returned, self.point = self._train(start, *args, **kwargs)
            finally:
                self._runs = False
            return returned

        return attached

    @abc.abstractmethod
    def _train(self, start: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ResumePoint | None]:
        """Resume and save the training that ``start`` runs; return what that returned, and where it began."""

    def detach(self) -> None:
        """Put back what was replaced; does nothing the second time."""
        self._replaced.undo()
        AT_EXIT.discard(self._last_call)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()
        if error is None and not self._is_called:
            raise ResumeError(self._unused())

    def _unused(self) -> str:
        return (
            f"nothing in this process called {self._methods} while {self._root} was attached, so nothing was saved. "
            "Attach the callback to what trains; if that is a loop of its own, use ckptkit.loop, as docs/guide.md shows"
        )

    def _say_if_unused(self) -> None:
        is_worker = multiprocessing.parent_process() is not None  # which may run the lines of the script again
        if not self._is_called and not is_worker and getattr(sys, "last_value", None) is None:  # no error ended it
            _log.error(self._unused())


class ModelAttachment(Attachment):
    """Attaches a callback to ``Model``, of which there is one class in the process.

    Args:
        root: As for `Attachment`.
        callback: A call that has it among its callbacks goes through, if `prepared` returns where that begins.
        run: Resumes any other call, and gets what starts it, its model, epochs, dataset and callbacks.
        prepared: Returns where the callback has resumed, or None.
    """

    def __init__(
        self,
        root: str,
        callback: Callback,
        run: Callable[..., ResumePoint],
        prepared: Callable[[], ResumePoint | None],
    ) -> None:
        self._callback, self._run, self._prepared = callback, run, prepared
        for method in (Model.train, Model.fit):
            if not inspect.signature(method).parameters.keys() >= {*_ARGUMENTS}:
                raise ResumeError(
                    f"Model.{method.__name__} was replaced by a function that does not name the arguments "
                    f"{', '.join(_ARGUMENTS)}, so what is trained is not known. Attach the callback before that"
                )
        super().__init__(root, Model, "train", "fit")

    def _train(self, start: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[None, ResumePoint]:
        bound = inspect.signature(start).bind(*args, **kwargs)
        bound.apply_defaults()
        (_, model), *arguments = bound.arguments.items()
        given = dict(arguments)
        others = as_list(given["callbacks"])
        point = self._prepared()
        if point is not None and self._callback in others:
            start(model, **given)
            return None, point
        if given["initial_epoch"]:
            raise ResumeError(
                f"this training begins at epoch {given['initial_epoch']} by itself, but the checkpoint decides that: "
                "turn off the resume of the code that calls Model, and leave initial_epoch out"
            )

        def started(**changed: Any) -> None:
            start(model, **{**given, **changed})

        return None, self._run(started, model, given["epoch"], given["train_dataset"], others)


def as_list(callbacks: Callback | Iterable[Callback] | None) -> list[Callback]:
    return [callbacks] if isinstance(callbacks, Callback) else list(callbacks or [])
