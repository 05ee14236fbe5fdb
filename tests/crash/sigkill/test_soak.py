"""A few lives of the soak; docs/testing.md says what thousands of them have shown."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


@pytest.mark.extended
@pytest.mark.parametrize(("more", "kills"), [([], 40), (["--bucket"], 10)], ids=["disk", "bucket"])
def test_lives_killed_at_random_moments_lose_nothing(tmp_path, more, kills):
    command = [sys.executable, "-m", "crash.sigkill.soak", "--kills", str(kills), "--folder", str(tmp_path), *more]
    done = subprocess.run(command, cwd=TESTS, text=True, capture_output=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    counts = json.loads(done.stdout[done.stdout.rindex("{\n") :])
    assert counts["killed"] >= kills
    assert counts["restored"]
    assert counts["reported"]
