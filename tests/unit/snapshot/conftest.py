"""Buffers so small that there is a border every few bytes."""

import pytest
from support.live import SMALL_BUFFER_BYTES


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch):
    for module in ("buffers", "staging", "window"):
        monkeypatch.setattr(f"ckptkit.snapshot.{module}.BUFFER_BYTES", SMALL_BUFFER_BYTES)
