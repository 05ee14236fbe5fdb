"""Every test here begins as a fresh process would."""

from __future__ import annotations

import pytest
from support.training import begin_process


@pytest.fixture(autouse=True)
def fresh_process():
    begin_process()
    yield
    begin_process()


@pytest.fixture
def shown(caplog):
    """Reads what ckptkit logged."""
    caplog.set_level("INFO", "ckptkit")
    return lambda: "\n".join(record.getMessage() for record in caplog.records if record.name == "ckptkit")
