from pathlib import Path

import pytest
from support.process import module_path


@pytest.fixture
def ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, in which `support.process_ranks.launcher` can start ranks."""
    monkeypatch.setenv("PYTHONPATH", module_path())
    monkeypatch.chdir(tmp_path)
    return tmp_path
