"""Makes ckptkit's log visible where nobody has set up logging, as in most training scripts."""

from __future__ import annotations

import logging
import sys


def show_log() -> None:
    """Send the ``ckptkit`` logger to stderr from INFO on, unless the program has its own logging.

    A program that calls `logging.basicConfig` or gives the ``ckptkit`` logger a handler first is left alone.
    """
    logger = logging.getLogger("ckptkit")
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[ckptkit] %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
