"""A launch counts if every worker ended well; only the scheduler, which runs nothing of ckptkit's, may fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from multirank.msrun.launch import LaunchError, msrun

pytestmark = pytest.mark.extended  # it is about the tests alone

SCRIPT = """
import ctypes, os, pathlib, sys
from multirank.msrun.launch import begin, report

folder, failing = pathlib.Path(sys.argv[1]), sys.argv[2]
begin(folder)
if os.environ["MS_ROLE"] == "MS_WORKER":
    rank = int(os.environ["MS_NODE_ID"])
    report(folder, rank, {"rank": rank})
if os.environ["MS_ROLE"] == failing:
    ctypes.string_at(0)
"""


def launched(folder: Path, failing: str) -> list[dict]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    return msrun(2, script, folder / "job", failing)


def test_a_scheduler_that_fails_after_the_workers_counts(tmp_path):
    assert launched(tmp_path, "MS_SCHED") == [{"rank": 0}, {"rank": 1}]
    assert "Scheduler process" in (tmp_path / "job/logs/msrun.log").read_text()
    assert "Segmentation fault" in (tmp_path / "job/logs/scheduler.log").read_text()


def test_a_worker_that_fails_after_its_report_does_not(tmp_path):
    with pytest.raises(LaunchError) as caught:
        launched(tmp_path, "MS_WORKER")
    assert "Error code: -11" in str(caught.value)
    assert "Segmentation fault" in str(caught.value)
