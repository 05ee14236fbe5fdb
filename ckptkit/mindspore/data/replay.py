"""Reads and discards the batches that are already trained.

Guarantees: the iterator stands after exactly that many batches; after a whole epoch, also past the epoch's end. The
cost is that of reading them. It is logged (and shown by a bar on a terminal) as soon as it can be estimated. Main
thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from ckptkit.core.text import many
from ckptkit.errors import ResumeError
from ckptkit.manager.heartbeat.record import Phase
from ckptkit.manager.heartbeat.writer import HEARTBEAT
from ckptkit.mindspore.rng import undisturbed, words_drawn_unseeded

with undisturbed():  # rich draws from the global `random` when it is imported first
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_log = logging.getLogger("ckptkit")

_FORESEEN_AFTER = 20  # batches; fewer if they take a second


class Replay:
    """Runs one replay and reports its progress.

    Args:
        batches: How many to read and discard.
        monotonic: Gives seconds.
        console: Where the bar goes; nothing is drawn if it is not a terminal.
    """

    def __init__(self, batches: int, *, monotonic: Callable[[], float], console: Console | None = None) -> None:
        self._batches = batches
        self._monotonic = monotonic
        self._console = console if console is not None else Console(stderr=True)
        self._began = 0.0
        self._done = 0
        self._foreseen = False

    def run(self, read: Callable[[], Any]) -> Any:
        """Call ``read`` once per batch and return the last result."""
        _log.info("replaying the data up to batch %d, since parts of it may be random", self._batches)
        self._began = self._monotonic()
        columns = (TextColumn("replaying data"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        last = None
        bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        with HEARTBEAT.during(Phase.REPLAYING), bar as progress:
            task = progress.add_task("replay", total=self._batches)
            while self._done < self._batches:
                last = read()
                self._done += 1
                HEARTBEAT.sign()
                progress.advance(task)
                self._foresee()
        _log.info("replayed %s in %.1f s", many(self._batches, "batch", "batches"), self._spent().total_seconds())
        return last

    def _spent(self) -> timedelta:
        return timedelta(milliseconds=round(1000 * (self._monotonic() - self._began)))

    def _foresee(self) -> None:
        if self._foreseen or self._done == self._batches:
            return
        spent = self._spent()
        if self._done >= _FORESEEN_AFTER or spent >= timedelta(seconds=1):
            self._foreseen = True
            left = self._batches - self._done
            seconds = round(spent.total_seconds() / self._done * left)
            _log.info("the replay of %d more batches will take about %s", left, timedelta(seconds=seconds))


def replay_epochs(
    iterator: Iterator[Any], batches: int, size: int, replay: Replay, let_go_on: Callable[[], None] = lambda: None
) -> Any:
    """Move ``iterator`` past ``batches`` batches in epochs of ``size``; return the last of them.

    A MindSpore iterator ends once per epoch and then continues with the next one. ``let_go_on`` is called after every
    batch, as training would.

    Raises:
        ResumeError: If an epoch has another number of batches.
    """
    done = 0

    def read() -> Any:
        nonlocal done
        batch = next(iterator, _END)
        let_go_on()
        done += 1
        over = done % size == 0 and batch is not _END and next(iterator, _END) is not _END
        if batch is _END or over:
            raise ResumeError(
                f"the dataset says that an epoch has {size} batches, but epoch {(done - 1) // size} has "
                f"{'more' if over else 'fewer'}. No position in such a pipeline can be resumed; let every epoch have "
                "the same number of batches (filter before batch, drop_remainder, repeat, take)"
            )
        return batch

    return replay.run(read)


_END = object()


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
