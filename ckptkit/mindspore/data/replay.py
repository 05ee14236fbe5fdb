"""Reads and discards the batches that are already trained, and says how long that takes.

Guarantees: the iterator stands after exactly that many batches; after a whole epoch, also past the epoch's end. Main
thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from ckptkit.core.text import many
from ckptkit.errors import ResumeError
from ckptkit.manager.heartbeat import HEARTBEAT, Phase
from ckptkit.mindspore.rng import words_drawn_unseeded

_log = logging.getLogger("ckptkit")

_FORESEEN_AFTER = 20  # batches; fewer if they take a second
_END = object()


def replay(batches: int, read: Callable[[], Any], *, monotonic: Callable[[], float] = time.monotonic) -> Any:
    _log.info("replaying the data up to batch %d, since parts of it may be random", batches)
    last, is_foreseen, began = None, False, monotonic()
    with HEARTBEAT.during(Phase.REPLAYING):
        for done in range(1, batches + 1):
            last = read()
            HEARTBEAT.sign()
            spent = monotonic() - began
            if not is_foreseen and done < batches and (done >= _FORESEEN_AFTER or spent >= 1):
                is_foreseen = True
                left = timedelta(seconds=round(spent / done * (batches - done)))
                _log.info("the replay of %d more batches will take about %s", batches - done, left)
    _log.info("replayed %s in %.1f s", many(batches, "batch", "batches"), monotonic() - began)
    return last


def replay_epochs(iterator: Iterator[Any], batches: int, size: int) -> Any:
    """Move ``iterator`` past ``batches`` batches in epochs of ``size``; return the last of them.

    A MindSpore iterator ends once per epoch and then continues with the next one.
    """
    done = 0

    def read() -> Any:
        nonlocal done
        batch = next(iterator, _END)
        done += 1
        is_longer = done % size == 0 and batch is not _END and next(iterator, _END) is not _END
        if batch is _END or is_longer:
            raise unequal_epochs(size, (done - 1) // size, "more" if is_longer else "fewer")
        return batch

    return replay(batches, read)


def unequal_epochs(size: int, epoch: int, number: str = "another number") -> ResumeError:
    """Return the refusal of a pipeline that gives ``number`` instead of ``size`` batches in an epoch."""
    return ResumeError(
        f"the dataset says that an epoch has {size} batches, but epoch {epoch} has {number}. No position in such a "
        "pipeline can be resumed; let every epoch have the same number of batches (filter before batch, "
        "drop_remainder, repeat, take)"
    )


def another_batch(data: str, batch: int) -> str:
    """Return the message of a pipeline ``data`` whose replay gives another ``batch`` than the one that was trained."""
    return (
        f"{data}: batch {batch}, the last one that was trained, is different now although all batches before it were "
        f"replayed, so the run cannot continue exactly. {drawn_at_start()} Or the data files changed, or a part of the "
        "pipeline is not deterministic: Python code that draws from the global `random` or `numpy.random` together "
        "with the training loop, or in several threads; a source or sampler that remembers earlier iterators; the time "
        "of day. Restore the data, or let random code draw from ckptkit.data.sample_rng(seed, epoch, index)"
    )


def drawn_at_start() -> str:
    """Return the first cause to look for if data are not those of the run: that each start draws them anew."""
    return (
        f"{'No seed was set' if words_drawn_unseeded() else 'It may lack a seed'}: data, a split or an order that the "
        "script draws are other ones at each start. Call ms.set_seed(...), and random.seed(...) for `random`, before "
        "anything is drawn, and start under another root."
    )
