"""Knows whether all that belongs to the last batch of a training is done, by `Completion`.

A train cell knows whether its call returned. What the loop does after that call (an average of the weights, another
cell, a count of its own) only the loop knows: it says so by ``manager.step``, and by a save of its own accord.

Guarantees: once a loop has said so of a batch, a save that an error or a signal brings is refused unless the loop has
said so of the last batch, too; the same holds for the first batch after a restore. Of a loop that never says so, such a
save is doubted. Of one that takes its batches from elsewhere than `ckptkit.data.resumable`, nobody sees where a batch
begins, so that both hold wherever the save comes. An error counts while it is being handled (``except``, ``finally``,
``with``), a signal in its handler. Main thread only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from ckptkit.core.stack import SignalHandlers
from ckptkit.errors import ResumeError


class Completion:
    """Keeps the place of which the loop said last that all is done.

    Args:
        delivers_first: Whether a batch counts as delivered before it is trained, as by `ckptkit.data.resumable`.

    Attributes:
        is_said: Whether the loop has said so of any batch since the last restore.
    """

    def __init__(self, *, delivers_first: bool) -> None:
        self._delivers_first = delivers_first
        self.is_said = False
        self._place: object = None
        self._restored_at = 0
        self._handlers = SignalHandlers()
        self._error_before: BaseException | None = None

    def begin(self) -> None:
        """Note that a batch begins: errors that are handled around it are older than it."""
        self._error_before = sys.exc_info()[1]

    def restored(self, place: object, delivered: int) -> None:
        """Note that all is as it was at ``place``, after ``delivered`` batches, whatever was raised before."""
        self.begin()
        self._handlers.look()
        self.is_said, self._place, self._restored_at = False, place, delivered

    def say(self, place: object) -> None:
        """Note that all is done at ``place``; a loop that says so while an error is handled need not know it."""
        if next(self.errors(), None) is None and self._handlers.running() is None:
            self.is_said, self._place = True, place
            self._error_before = sys.exc_info()[1]

    def is_open(self, place: object) -> bool:
        """Return whether a batch was delivered of which the loop has not said that it is done."""
        return self._delivers_first and place != self._place

    def errors(self) -> Iterator[BaseException]:
        """Yield the errors that are being handled, their causes and members of groups; not those before the batch."""
        waiting: list[BaseException | None] = [sys.exc_info()[1]]
        seen = {id(self._error_before)}
        while waiting:
            error = waiting.pop()
            if error is None or id(error) in seen:
                continue
            seen.add(id(error))
            yield error
            waiting += [error.__context__, error.__cause__, *getattr(error, "exceptions", ())]

    def judge(self, place: object, delivered: int) -> str | None:
        """Accept a save at ``place``, the last of ``delivered`` batches; return a warning if it may be half done.

        Raises:
            ResumeError: If an error or a signal brings the save, the loop says what is done, and has not said it of
                the last batch.
        """
        self._handlers.look()
        error, handler = next(self.errors(), None), self._handlers.running()
        if error is None and handler is None:
            self.say(place)
            return None
        why = f"{handler}() handles a signal" if error is None else f"{type(error).__name__} is being handled"
        if not self._delivers_first:
            why += f" after {delivered} batches, and nothing shows whether another one has begun"
            way_out = (
                "Give the loop its batches by ckptkit.data.resumable, and call manager.step(state) once all that "
                "belongs to a batch is done"
            )
        elif place != self._place:
            why += (
                f", {delivered} batches were delivered, and nothing shows that the last one was trained, with all that "
                "belongs to it"
            )
            way_out = (
                "Call manager.step(state) right after that, before other code that may fail; in a handler of a "
                "signal, set a flag, and save after that call"
            )
        else:
            return None
        # Of the first batch nothing is lost, and whether the loop will say so of its batches is not known yet.
        if self.is_said or delivered <= self._restored_at + 1:
            raise ResumeError(f"{why}. This state is not saved. {way_out}")
        return f"{why}. {way_out}"
