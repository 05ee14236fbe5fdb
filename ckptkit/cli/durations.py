"""Parses durations such as ``90``, ``90s``, ``5m`` or ``1.5h``. Pure, any thread."""

from __future__ import annotations

import re
from datetime import timedelta

from ckptkit.cli.errors import WrongUsageError

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smh]?)")


def duration_of(text: str) -> timedelta | None:
    """Return the duration, in seconds where no unit is given; None if ``text`` is none.

    Raises:
        OverflowError: If it is too long.
    """
    match = _DURATION.fullmatch(text)
    return None if match is None else timedelta(seconds=float(match[1]) * _UNITS[match[2]])


def has_unit(text: str) -> bool:
    """Return whether ``text`` is a duration with a unit."""
    match = _DURATION.fullmatch(text)
    return match is not None and bool(match[2])


def positive_duration(flag: str, text: str) -> timedelta:
    """Return the duration that was given for ``flag``.

    Raises:
        WrongUsageError: If ``text`` is no duration, or zero.
    """
    try:
        found = duration_of(text)
    except OverflowError:
        found = None
    if found is None or found <= timedelta(0):
        raise WrongUsageError(f"{flag}: expected a duration such as 90, 90s, 5m or 1.5h, got {text!r}")
    return found
