"""Some thousand saves of one process; docs/testing.md has the figures of 100,000."""

from pathlib import Path

import pytest
from support.process import python


@pytest.mark.extended
def test_memory_stays_over_thousands_of_saves(tmp_path):
    command = ["-m", "benchmarks.endurance", "--saves", "3000", "--slower", "100", "--folder", tmp_path / "run"]
    done = python(*command, cwd=Path(__file__).parents[3], timeout=900)
    assert "3,000 saves" in done.stdout
