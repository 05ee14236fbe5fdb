"""Fixtures shared by the tests of the layers below MindSpore."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["servers.fixtures"]

os.environ.pop("COLUMNS", None)  # tables are as wide as the tests say, whatever terminal they were started in

settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run root that does not exist yet."""
    return tmp_path / "run"
