"""Some thousand saves of one process; docs/testing.md has the figures of 100,000."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.extended
def test_memory_stays_over_thousands_of_saves(tmp_path):
    command = [sys.executable, "-m", "benchmarks.endurance", "--saves", "3000", "--slower", "100"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "run")],
        cwd=Path(__file__).parents[3],
        text=True,
        capture_output=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3,000 saves" in done.stdout
