"""A few lives of the soak; docs/testing.md says what thousands of them have shown."""

import json
from pathlib import Path

import pytest
from support.process import python

TESTS = Path(__file__).parents[2]


@pytest.mark.extended
@pytest.mark.parametrize(("more", "kills"), [([], 40), (["--bucket"], 10)], ids=["disk", "bucket"])
def test_lives_killed_at_random_moments_lose_nothing(tmp_path, more, kills):
    command = ["-m", "crash.sigkill.soak", "--kills", kills, "--folder", tmp_path, *more]
    done = python(*command, cwd=TESTS, timeout=900)
    counts = json.loads(done.stdout[done.stdout.rindex("{\n") :])
    assert counts["killed"] >= kills
    assert counts["restored"]
    assert counts["reported"]
