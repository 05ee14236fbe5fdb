"""Notices that a loop draws from a random generator that its loader holds.

A loader without a state is read again at a resume. That moves its generators as the loader itself did, but what the
loop drew from them in between is not drawn again.

Guarantees: looks at generators of NumPy and Python in attributes of the loader, in the first batches of a process. Of a
loader with a thread of its own, which may draw at any time, nothing is said. Main thread only.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

from ckptkit.mindspore.data.batch_digest import digest_of
from ckptkit.mindspore.rng import generator_state

_log = logging.getLogger("ckptkit")

_LOOKS = 16  # batches
_CONCURRENT = (threading.Thread, queue.Queue, queue.SimpleQueue)


class LoopDraws:
    """Compares the generators of ``loader`` before and after the loop has used a batch; names one that moved, once."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._looks = _LOOKS
        self._before: dict[str, str | None] = {}

    def note(self) -> None:
        """Note the generators: the loop gets a batch."""
        self._before = self._states() if self._looks else {}
        self._looks = max(0, self._looks - 1)

    def look(self) -> None:
        """Warn if one moved since: the loop asks for the next batch."""
        if not self._before:
            return
        now = self._states()
        moved = [name for name, state in self._before.items() if now.get(name, state) != state]
        if moved:
            self._looks = 0
            _log.warning(
                "The resumed run may not be bit-exact: the loop drew from %s of the %s, which a resume reads again "
                "without that. Give the loader state_dict() and load_state_dict(), or the loop a generator of its own",
                *(moved[0], type(self._loader).__qualname__),
            )

    def _states(self) -> dict[str, str | None]:
        held = getattr(self._loader, "__dict__", {})
        if any(isinstance(one, _CONCURRENT) for one in held.values()):
            return {}
        states = {name: generator_state(one) for name, one in held.items()}
        return {name: digest_of([state]) for name, state in states.items() if state is not None}
