import shutil
from pathlib import Path

import pytest
from support.runs.report_lives import grow_history


@pytest.fixture(scope="session")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("history") / "vit-17"
    grow_history(root)
    return root


@pytest.fixture
def root(grown: Path, tmp_path: Path) -> Path:
    """A copy of the run with a history, for the test to break."""
    return Path(shutil.copytree(grown, tmp_path / "vit-17"))
