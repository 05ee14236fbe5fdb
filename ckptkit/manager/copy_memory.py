"""Makes the memory ready that the first saves copy into, in a thread that gives way to training.

The first touch of memory takes many times as long as a copy into it (on virtual machines, seconds per GB), and a save
would wait for that. Guarantees: no more buffers are made than a save fills at once, or one more if a save comes
meanwhile, and none once `CopyMemory.end` was called. What a save needs earlier, it makes itself. Training thread only;
the buffers are made in a thread of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.snapshot import Capturable, Handling, StagingArea

_log = logging.getLogger("ckptkit")
_FEW_BYTES = 32 << 20  # touched in 24 to 29 ms on a virtual machine


class CopyMemory:
    """Prepares the buffers of one staging area.

    Args:
        area: Has the buffers.
        at_boundaries: Whether no save is due between two boundaries, so that accumulators are not copied.
    """

    def __init__(self, area: StagingArea, *, at_boundaries: bool) -> None:
        self._area = area
        self._at_boundaries = at_boundaries
        self._is_begun = self._is_over = False

    def prepare(self, state: Capturable, handling: Callable[[], Handling]) -> None:
        """Begin, at the first call, to make what a save of ``state`` will copy into; nothing if that is little."""
        if self._is_begun:
            return
        self._is_begun = True
        size_bytes = self._area.copied_bytes(state.leaves(at_boundary=self._at_boundaries), handling())
        if size_bytes < _FEW_BYTES:
            return
        try:
            Worker(partial(self._make, size_bytes), "ckptkit-memory", gives_way=True).start()
        except NoThreadError as error:
            _log.debug("the first save makes its own memory: %s", error)

    def end(self) -> None:
        """Make no more buffers."""
        self._is_over = True

    def _make(self, size_bytes: int) -> None:
        try:
            while not self._is_over and self._area.make_buffer(size_bytes):
                pass
        except (OSError, MemoryError) as error:
            _log.info("there is no memory to prepare the first save with, which will make its own: %s", error)
