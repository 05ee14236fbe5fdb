"""A few lives of the soak; docs/testing.md says what thousands of them have shown."""

import json
from pathlib import Path

import pytest
from support.process import python

TESTS = Path(__file__).parents[2]


@pytest.mark.extended
def test_lives_killed_at_random_moments_lose_nothing(tmp_path):
    done = python("-m", "crash.sigkill.soak", "--kills", 40, "--folder", tmp_path, cwd=TESTS, timeout=900)
    counts = json.loads(done.stdout[done.stdout.rindex("{\n") :])
    assert counts["killed"] >= 40
    assert counts["restored"]
    assert counts["reported"]
