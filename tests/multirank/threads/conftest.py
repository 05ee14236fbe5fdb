"""Ranks as threads: what they need not wait for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ckptkit.core import worker


@pytest.fixture(scope="module")
def no_waiting() -> Iterator[None]:
    """Nothing waits for the disk, nor for a processor: all that is waited for is threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(worker, "_give_way", lambda: None)
        yield
