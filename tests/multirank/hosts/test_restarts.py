"""The benchmark of restarts comes to its table."""

from pathlib import Path

import pytest

from benchmarks.restarts import __main__ as restarts
from benchmarks.restarts.homes import Times, measure, rows

pytestmark = pytest.mark.extended


def test_restarts_are_measured(tmp_path: Path) -> None:
    found = measure(tmp_path / "bench", mib=1, times=1, homes=["neighbour"])
    (one,) = found["neighbour"]
    assert all(seconds > 0 for seconds in one.seconds)
    assert sum(one.seconds[:-1]) == pytest.approx(one.seconds[-1])


def test_table_has_medians() -> None:
    times = [Times((seconds, 0, 0, seconds), seconds) for seconds in (1.0, 9.0, 2.0)]
    _, row = rows({"memory": times})
    assert [cell.strip() for cell in row.split("|")] == ["memory", "2.00 s", "0.00 s", "0.00 s", "2.00 s", "1 to 9"]


def test_phases_of_restart_are_measured(tmp_path: Path) -> None:
    plain, resumed = restarts.measure(tmp_path, mib=1, times=1)
    assert resumed[0].keys() == restarts.PHASES.keys() > plain[0].keys()
    assert all(seconds >= 0 for seconds in resumed[0].values())
    *_, in_all, ratio = restarts.rows(plain, resumed)
    assert in_all.startswith("in all")
    assert ratio.startswith("times the other")
