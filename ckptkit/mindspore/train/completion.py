"""Knows whether all that belongs to the last batch of a training is done, by `Completion`.

A train cell knows whether its call returned. What the loop does after that call (an average of the weights, another
cell, a count of its own) only the loop knows: it says so by ``manager.step``. If it never calls that, a save of its own
accord says so.

Guarantees: once a loop has said so of a batch, a save that an error or a signal brings is refused unless the loop has
said so of the last batch, too; the same holds for the first batch after a restore, and for each further save before
the next ``step``. Of a loop that never says so, such a save is doubted. So is any other save of a loop that calls
``step`` and has not called it after the last batch, wherever it comes from: another thread, an exit of the interpreter,
an event loop. Of a loop that takes its batches from elsewhere than `ckptkit.data.resumable`, nobody sees where a batch
begins: a save that an error or a signal brings is refused or doubted wherever it comes, and of others nothing is seen.

An error counts while it is being handled (``except``, ``finally``, ``with``), unless it is older than the batch, or
ends an iteration. A signal counts while its handler in Python runs. A save from another thread is judged by its place
alone; all else is for the main thread only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from ckptkit.core.stack import SignalHandlers
from ckptkit.snapshot.capture import IncompleteStepError

_ENDS_OF_ITERATIONS = (StopIteration, StopAsyncIteration)


class Completion:
    """Keeps the place of which the loop said last that all is done.

    Args:
        delivers_first: Whether a batch counts as delivered before it is trained, as by `ckptkit.data.resumable`.

    Attributes:
        is_said: Whether the loop has said so of any batch since the last restore.
    """

    def __init__(self, *, delivers_first: bool) -> None:
        self._delivers_first = delivers_first
        self._handlers = SignalHandlers()
        self.is_said = False
        self._calls_step = False
        self._place: object = None
        self._refused_at: object = None
        self._restored_at = 0
        self._older: list[BaseException] = []  # errors that were being handled before the batch
        self._at_last_step: list[BaseException] | None = None

    def begin(self) -> None:
        """Note that a batch begins, if batches are delivered first: errors that are being handled are older."""
        if self._delivers_first:
            self._older = _handled()

    def restored(self, place: object, delivered: int) -> None:
        """Note that all is as it was at ``place``, after ``delivered`` batches, whatever was raised before."""
        self._older, self._at_last_step = _handled(), None
        self._handlers.look()
        self._handlers.note_running()
        self.is_said, self._calls_step = False, False
        self._place, self._refused_at, self._restored_at = place, None, delivered

    def step(self, place: object) -> None:
        """Note that the loop says that all is done at ``place``; while an error is handled, it need not know it."""
        self._calls_step = True
        if self._at_last_step is not None:  # what outlasts a step belongs to no batch
            self._older = self._at_last_step
        if self._brought_by() is None:
            self._say(place)
        self._at_last_step = _handled()

    def is_open(self, place: object) -> bool:
        """Return whether a batch was delivered of which the loop has not said that it is done."""
        return self._delivers_first and place != self._place

    def errors(self) -> Iterator[BaseException]:
        """Yield the errors that are being handled, their causes and members of groups; not those before the batch."""
        if not (handled := _handled()):
            return iter(())
        older = {id(one) for one in self._older}
        return (one for one in handled if id(one) not in older and not isinstance(one, _ENDS_OF_ITERATIONS))

    def judge(self, place: object, delivered: int) -> str | None:
        """Accept a save at ``place``, the last of ``delivered`` batches; return a warning if it may be half done.

        Raises:
            IncompleteStepError: If an error or a signal brings the save, the loop says what is done, and has not said
                it of the last batch; or if that was so at an earlier save, and the loop has not said it since.
        """
        self._handlers.look()
        brought_by = self._brought_by()
        if brought_by is None and self._refused_at == (place,):
            raise IncompleteStepError(
                f"a save after {delivered} batches was refused, and manager.step(state) was not called since. This "
                "state is not saved: restore a checkpoint, or complete the batch and call manager.step(state)"
            )
        if brought_by is None and self._calls_step and self.is_open(place):
            return (
                f"{delivered} batches were delivered, and manager.step(state) was not called after the last one. If "
                "something that belongs to it is still to come, a resumed run is without it. Call step before the save"
            )
        if brought_by is None:
            self._say(place)
            return None
        if not self._delivers_first:
            why = f"{brought_by} after {delivered} batches, and nothing shows whether another one has begun"
            way_out = (
                "Save after the except block, or give the loop its batches by ckptkit.data.resumable and call "
                "manager.step(state) once all that belongs to a batch is done"
            )
        elif self.is_open(place):
            why = (
                f"{brought_by}, {delivered} batches were delivered, and nothing shows that the last one was trained, "
                "with all that belongs to it"
            )
            way_out = (
                "Call manager.step(state) right after that, before other code that may fail and after an except "
                "block; in a handler of a signal, set a flag, and save after that call"
            )
        else:
            return None
        # Of the first batch nothing is lost, and whether the loop will say so of its batches is not known yet.
        if self.is_said or delivered <= self._restored_at + 1:
            self._refused_at = (place,) if self._delivers_first else None
            raise IncompleteStepError(f"{why}. This state is not saved. {way_out}")
        return f"{why}. {way_out}"

    def _say(self, place: object) -> None:
        self.is_said, self._place, self._refused_at = True, place, None

    def _brought_by(self) -> str | None:
        """Return what stands against a save, in words: an error or a signal that is being handled."""
        error, handler = next(self.errors(), None), self._handlers.running()
        if error is not None:
            return f"{type(error).__name__} is being handled"
        return f"{handler}() handles a signal" if handler is not None else None


def _handled() -> list[BaseException]:
    waiting: list[BaseException | None] = [sys.exc_info()[1]]
    if waiting == [None]:
        return []
    found: dict[int, BaseException] = {}
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in found:
            continue
        found[id(error)] = error
        waiting += [error.__context__, error.__cause__, *getattr(error, "exceptions", ())]
    return [*found.values()]
