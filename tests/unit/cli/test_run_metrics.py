"""A monitor reads what ``ckptkit run`` does, as Prometheus's text or as JSON."""

from __future__ import annotations

import json
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.heartbeats import life_of, record_of

from ckptkit.cli.commands.run import RunMetrics
from ckptkit.cli.errors import WrongUsageError
from ckptkit.manager.heartbeat import Phase
from ckptkit.tools.supervisor.diagnosis import RestartBudget, diagnose
from ckptkit.tools.supervisor.life_log import LifeLog


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def ended(cause_code):
    life = life_of(record_of(Phase.TRAINING, micro_step=7), returncode=cause_code)
    return LifeLog("0" * 32, pytest.fail, print).enter(life, RestartBudget(9).judge(life, diagnose(life)), 2.5)


def read(path):
    """What the file says, in one form."""
    if path.suffix == ".json":
        found = json.loads(path.read_text())
        ranks = {(one["rank"], one["phase"]): one for one in found["ranks"]}
        return found["lives"], found["seconds"], {where: one["micro_step"] for where, one in ranks.items()}
    families = {one.name: one.samples for one in text_string_to_metric_families(path.read_text())}
    lives = {one.labels["cause"]: one.value for one in families["ckptkit_lives"]}
    seconds = {one.labels["phase"]: one.value for one in families["ckptkit_seconds"]}
    steps = {(int(one.labels["rank"]), one.labels["phase"]): one.value for one in families["ckptkit_micro_step"]}
    return lives, seconds, steps


@pytest.mark.parametrize("name", ["run.prom", "run.json"])
def test_ranks_and_lives_are_written(tmp_path, name):
    clock, path = Clock(), tmp_path / name
    metrics = RunMetrics(path, monotonic=clock, say=pytest.fail)
    ranks = [record_of(Phase.TRAINING, entered_at=90.0, rank=at, ranks=2, micro_step=40 + at) for at in (0, 1)]
    metrics.update(ranks)
    lives, seconds, steps = read(path)
    assert (lives, seconds, steps) == ({}, {"training": 10.0}, {(0, "training"): 40, (1, "training"): 41})
    ranks[0].micro_step = 50
    metrics.update(ranks)
    assert read(path)[2][0, "training"] == 40  # not yet
    clock.now += 5
    metrics.update(ranks)
    assert read(path)[2][0, "training"] == 50
    event = ended(-9)
    metrics.end_life(event)
    lives, seconds, steps = read(path)
    assert (lives, steps, seconds["down"]) == ({"killed": 1}, {}, 2.5)
    metrics.end_life(event)
    assert read(path)[0] == {"killed": 2}
    assert [one.name for one in tmp_path.iterdir()] == [name]
    if path.suffix == ".json":
        return
    found = {one.name: one.type for one in text_string_to_metric_families(path.read_text())}
    names = ("micro_step", "committed_step", "mirror_lag", "seconds_since_sign")
    gauges = dict.fromkeys((f"ckptkit_{name}" for name in names), "gauge")
    assert found == {"ckptkit_lives": "counter", "ckptkit_seconds": "counter", **gauges}


def test_process_that_trained_before_the_present_one_is_not_counted_on(tmp_path):
    path = tmp_path / "run.json"
    first = record_of(Phase.ENDED, entered_at=10.0, attempt=1, opened_at=1.0)
    second = record_of(Phase.TRAINING, entered_at=95.0, attempt=2, opened_at=90.0)
    RunMetrics(path, monotonic=Clock(), say=pytest.fail).update([first, second])
    assert read(path)[1] == {"training": 5.0}


def test_file_that_cannot_be_written_is_told_once(tmp_path):
    said = []
    metrics = RunMetrics(tmp_path / "missing" / "run.json", monotonic=Clock(), say=said.append)
    metrics.end_life(ended(-9))
    metrics.end_life(ended(-9))
    (message,) = said
    assert "could not write the metrics" in message


def test_what_it_needs_is_said_before_the_first_life(tmp_path, monkeypatch):
    with pytest.raises(WrongUsageError, match=r"\.prom \(Prometheus\) or \.json"):
        RunMetrics(tmp_path / "run.txt", monotonic=Clock(), say=print)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(WrongUsageError, match=r"pip install 'mindspore-ckptkit\[prometheus\]'"):
        RunMetrics(tmp_path / "run.prom", monotonic=Clock(), say=print)
