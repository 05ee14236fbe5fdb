"""Makes ckptkit's log visible in programs without their own logging, such as most training scripts."""

from __future__ import annotations

import logging
import sys


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
