"""Gives the training that other code starts to a checkpoint callback: replaces ``Model.train`` and ``Model.fit``.

Guarantees: the next ``Model.train`` or ``Model.fit`` of this process is resumed, positioned and saved as by
`CheckpointCallback.train`, or raises before its first batch. No training by `Model` goes unsaved in silence: a second
one, also one within the first, is refused, and it is said if none came. A call that has the callback among its
callbacks, after `CheckpointCallback.resume`, goes through as it is. Other ways of training (a loop, a cell that is
called) are not seen. Main thread only.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from mindspore.train import Callback, Model

from ckptkit.core.progress import ResumePoint
from ckptkit.errors import ResumeError
from ckptkit.mindspore.callback.expected_training import ExpectedTraining

_STARTS = ("train", "fit")  # methods of Model
_ARGUMENTS = ("epoch", "train_dataset", "callbacks", "initial_epoch")  # of both
_attached: list[Attachment] = []  # one at most: there is one Model class in the process


class Attachment(ExpectedTraining):
    """Gives the next training of the process to a callback, until `detach` or the end of a ``with`` block.

    Args:
        root: The callback's run root, for messages.
        callback: Goes through if a call that it prepared has it among its callbacks.
        run: Gets a function that starts the training, its model, epochs, dataset and callbacks. Resumes, then calls
            the function with ``callbacks=`` and ``initial_epoch=``.
        prepared: Returns where a training begins that the callback prepared itself, or that runs; None without one.

    Raises:
        ResumeError: If another callback is attached, or ``Model.train`` was replaced by a function of other arguments.
    """

    def __init__(
        self,
        root: str,
        callback: Callback,
        run: Callable[..., ResumePoint],
        prepared: Callable[[], ResumePoint | None],
    ) -> None:
        if _attached:
            raise ResumeError(
                f"a callback for {_attached[0]._root} is attached already, and a training has one run root. Call "
                "detach() on what its attach() returned, or use `with ckpt.attach():`"
            )
        self._callback = callback
        self._run = run
        self._prepared = prepared
        self._runs = False
        self._before = {name: getattr(Model, name) for name in _STARTS}
        replacements = {name: self._given_to_the_callback(name, start) for name, start in self._before.items()}
        for name, start in replacements.items():
            setattr(Model, name, start)
        _attached.append(self)
        super().__init__(root)

    def detach(self) -> None:
        """Give ``Model`` its own methods back; does nothing the second time."""
        if self in _attached:
            for name, start in self._before.items():
                setattr(Model, name, start)
            _attached.remove(self)
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
            "saved. If the training is a loop of its own, use CheckpointManager as docs/exactness.md shows for loops"
        )


def as_list(callbacks: Callback | Iterable[Callback] | None) -> list[Callback]:
    """Return what ``Model`` takes as callbacks as a list."""
    return [callbacks] if isinstance(callbacks, Callback) else list(callbacks or [])
