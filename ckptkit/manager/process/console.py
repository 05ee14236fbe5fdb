"""Makes ckptkit's log visible in programs without their own logging, such as most training scripts."""

from __future__ import annotations

import logging
import sys

from ckptkit.core.progress import ResumePoint
from ckptkit.core.text import many

_log = logging.getLogger("ckptkit")


def say_where(url: str, point: ResumePoint, attempt: int) -> None:
    """Log where a run begins or continues; ``attempt`` is the number of this start."""
    if point.checkpoint is None:
        before = f": {many(attempt - 1, 'start')} before this one left no checkpoint" if attempt > 1 else ""
        advice = ". If they ended before a save was due, save more often" if before else ""
        _log.info("starting afresh at %s%s%s", url, before, advice)
        return
    steps = f"{many(point.optimizer_step, 'optimizer step')}, micro-step {point.micro_step} of its cycle"
    if point.optimizer_step == point.batches_delivered:  # with K = 1, and where K is not known
        steps = many(point.batches_delivered, "batch", "batches")
    _log.info("resuming from %s: epoch %d, batch %d, after %s", point.checkpoint, point.epoch, point.batch, steps)


def show_log() -> None:
    """Send the ``ckptkit`` logger to stderr from INFO on, unless the program has its own logging.

    Does nothing if the program called `logging.basicConfig` or gave the ``ckptkit`` logger a handler before.
    """
    logger = logging.getLogger("ckptkit")
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[ckptkit] %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
