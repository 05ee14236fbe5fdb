"""A training that has ended, for mistakes that are made at the next start."""

import shutil
from pathlib import Path

import pytest

from docs.mistakes.script import run


@pytest.fixture(scope="session")
def _trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    outcome = run(folder)
    assert outcome.code == 0, outcome
    return folder


@pytest.fixture
def trained(_trained_once: Path, tmp_path: Path) -> Path:
    """A folder in which ``train.py`` has trained its two epochs."""
    return Path(shutil.copytree(_trained_once, tmp_path / "trained"))
