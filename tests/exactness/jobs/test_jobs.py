"""A killed job that starts again goes on as one that was left alone, or ends with an error that says what to do."""

import re

import pytest

from exactness.jobs.life import JOBS
from exactness.jobs.lives import assert_continues, killed, live


@pytest.mark.parametrize("name", [name for name, job in JOBS.items() if job.mode and not job.refused])
def test_resumed_job_is_the_uninterrupted_one(name, tmp_path):
    job = JOBS[name]
    whole = live(name, job.mode, tmp_path / "whole")
    whole.ended.expect(0)
    killed(name, job.mode, tmp_path / "killed", [job.kill])
    resumed = live(name, job.mode, tmp_path / "killed", elsewhere=True)
    resumed.ended.expect(0)
    assert_continues(whole, resumed)
    warnings = whole.warnings + resumed.warnings
    assert not any("bit-exact" in warning for warning in warnings), warnings


@pytest.mark.parametrize("name", [name for name, job in JOBS.items() if job.refused])
def test_refused_job_is_told_what_to_do(name, tmp_path):
    job = JOBS[name]
    if job.by == "resumed":
        killed(name, job.mode, tmp_path, [job.kill])
    life = live(name, job.mode, tmp_path, elsewhere=job.by == "resumed")
    life.ended.expect(1)
    *_, message = re.split(r"\n(?=[\w.]+Error: )", life.ended.stderr)
    assert all(words in message for words in job.refused), message
    assert len([at for at in life.steps if at[0] == life.stage]) <= job.trained
