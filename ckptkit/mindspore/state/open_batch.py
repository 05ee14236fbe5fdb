"""Knows whether a batch was handed out that the loop has not ended, by `OpenBatch`.

A train cell knows whether its call returned. What the loop does after that call (an average of the weights, another
cell, a count of its own) only the loop knows: it ends a batch by ``manager.step``, or as it asks for the next one.

Guarantees: from the moment in which `ckptkit.data.resumable` hands out a batch to its end, nothing is saved,
whoever asks: the loop, an ``except`` block, a signal handler, another thread. A ``step`` within a signal handler, or
while an error of this batch is handled, as in ``finally``, does not end it. In a loop that takes its batches from
elsewhere, nobody sees where a batch begins: nothing is saved in a signal handler, or while an error is handled.
"""

from __future__ import annotations

import inspect
import sys
from itertools import pairwise
from types import FrameType

from ckptkit.core.active_calls import frames_from
from ckptkit.mindspore.observe.frame_variables import variables_of
from ckptkit.snapshot.capture import IncompleteStepError


class OpenBatch:
    """Keeps one flag: set when a batch is handed out, cleared by ``step``, or when the next one is asked for."""

    def __init__(self, *, is_handed_out: bool) -> None:
        self._is_handed_out = is_handed_out
        # Where nobody sees where a batch begins, a loop may save as it meets the end of its data.
        self._ends_of_data = () if is_handed_out else (StopIteration, StopAsyncIteration)
        self._is_open = False
        self._older_error: BaseException | None = None  # that was being handled before the batch
        self._older_handlers = 0
        self._error_at_step: BaseException | None = None

    def restored(self) -> None:
        """Note that no batch has begun, whatever error or signal is being handled."""
        self._is_open = False
        self._older_error, self._older_handlers, self._error_at_step = sys.exc_info()[1], _signal_handlers(), None

    def begin(self) -> None:
        """Note that a batch begins, which is handed out."""
        self._is_open, self._older_error = True, sys.exc_info()[1]

    def end(self) -> None:
        """Note that the loop says that the batch is done; what handles an error or a signal need not know it."""
        if self._is_handed_out:
            self._is_open = self._is_open and self._interruption() is not None
            return
        error = sys.exc_info()[1]
        if error is self._error_at_step:  # what outlasts a step belongs to no batch
            self._older_error = error
        self._error_at_step = error

    def refuse(self, delivered: int) -> None:
        if self._is_open:
            raise IncompleteStepError(
                f"{delivered} batches were delivered, and nothing shows that the last one was trained, with all that "
                "belongs to it. This state is not saved. Call manager.step(state) right after that, before a save and "
                "before other code that may fail, and after an except block; in a signal handler, set a flag, and save "
                "after that call"
            )
        if not self._is_handed_out and (interruption := self._interruption()) is not None:
            raise IncompleteStepError(
                f"{interruption} is being handled after {delivered} batches, and nothing shows whether another one has "
                "begun. This state is not saved. Save after the except block or the signal handler, or give the loop "
                "its batches by ckptkit.data.resumable and call manager.step(state) once all that belongs to a batch "
                "is done"
            )

    def _interruption(self) -> str | None:
        error = sys.exc_info()[1]
        if error is not None and error is not self._older_error and not isinstance(error, self._ends_of_data):
            return "Ctrl-C" if isinstance(error, KeyboardInterrupt) else type(error).__name__
        return "a signal" if _signal_handlers() > self._older_handlers else None


def _signal_handlers() -> int:
    return sum(map(_is_signal_handler, frames_from(sys._getframe(1))))


def _is_signal_handler(frame: FrameType) -> bool:
    """Return whether a call got what Python gives to it: the number of a signal, and the frame that it interrupts."""
    code = frame.f_code
    takes_two = code.co_argcount > 1 or code.co_flags & inspect.CO_VARARGS  # first: costs less than their values
    if not takes_two or frame.f_back is None or str(frame.f_globals.get("__name__")).startswith("ckptkit."):
        return False
    names, variables = inspect.getargs(code), variables_of(frame)
    values = [variables.get(name or "") for name in (*names.args, names.varargs)]
    given = [argument for value in values for argument in (value if type(value) is tuple else (value,))]
    return any(isinstance(number, int) and interrupted is frame.f_back for number, interrupted in pairwise(given))
