"""A few lives of the soak; docs/testing.md says how to run thousands of them."""

import json
from pathlib import Path

import pytest
from support.process import python


@pytest.mark.extended
def test_lives_killed_at_random_moments_lose_nothing(tmp_path):
    command = ["-m", "crash.sigkill.soak", "--kills", 40, "--folder", tmp_path]
    done = python(*command, cwd=Path(__file__).parents[2], timeout=900)
    counts = json.loads(done.stdout[done.stdout.rindex("{\n") :])
    assert counts["killed"] >= 40
    assert counts["restored"]
    assert counts["reported"]
