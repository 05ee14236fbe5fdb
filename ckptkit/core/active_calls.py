"""Finds the calls that the present thread is in, such as those that a signal handler interrupted. Any thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def call_of(
    methods: Mapping[int, str], owner: Any, frame: FrameType | None, *, until: CodeType | None = None
) -> str | None:
    """Return the name of the innermost of an object's ``methods`` that ``frame`` is a part of, up to ``until``.

    ``methods`` has names by the `id` of the code: the hash of a code reads all of it.
    """
    while frame is not None and frame.f_code is not until:
        # The code first: reading the variables of a frame costs more.
        if id(frame.f_code) in methods and frame.f_locals.get("self") is owner:
            return methods[id(frame.f_code)]
        frame = frame.f_back
    return None
