"""What holds for every crash suite."""

import os

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_the_disk():
    """A killed process loses nothing that the kernel has; that fsyncs come in order is `test_storage_local`'s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
