"""The values of a run over optimizer steps, and what the fields' own readers find of them where they are written.

Those marked ``metrics`` need ``pip install '.[metrics]'``.
"""

import json
import math
import re
import sys
from datetime import datetime, timezone
from itertools import pairwise
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.runs.report_lives import Clock, Life, dying, grow_short, loss_at
from typer.testing import CliRunner

from ckptkit.cli import app
from ckptkit.cli.commands.report import run_goodput, run_report
from ckptkit.cli.errors import WrongUsageError
from ckptkit.core.save_policy import SaveEvery
from ckptkit.core.text import span
from ckptkit.errors import CheckpointNotFoundError, StorageError
from ckptkit.format.events import Point, Spread
from ckptkit.run.event_log import read_events
from ckptkit.run.goodput import CLASSES, account_of, life_of
from ckptkit.run.index import Documents
from ckptkit.storage import LocalStorage
from ckptkit.tools.report.health import judge
from ckptkit.tools.report.history import Attempt, RunStory, read_story
from ckptkit.tools.report.monitors import GOODPUT, SIZE, STALL, TOOK, MLflow, TensorBoard, course_of, series_of
from ckptkit.tools.report.page import page_of

NOW = datetime(2026, 3, 3, 12, tzinfo=timezone.utc)


def lives(root):
    """Three lives of one training, of which the last goes back; yields after each what stands there."""
    clock, storage = Clock(), LocalStorage(root)
    for steps, options in ((10, {}), (14, {}), (16, {"checkpoint": "a000001-c0000000004-m0000", "rewind": True})):
        life = Life(storage, clock, "node", save=SaveEvery(optimizer_steps=4))
        life.manager.restore(life.run, **options)
        with dying(life, KeyboardInterrupt()):
            life.train(steps)
        story = read_story(storage, NOW)
        yield steps, story, series_of(story)


def values_of(rows, name):
    return {row.step: row.values[name] for row in rows if name in row.values}


def test_each_step_has_one_value_in_order(grown):
    """And each save its costs."""
    story = read_story(LocalStorage(grown), NOW)
    rows = series_of(story)
    assert all(row.step <= later.step for row, later in pairwise(rows))
    names = [(row.step, name) for row in rows for name in row.values]
    assert len(names) == len(set(names))
    losses = values_of(rows, "loss")
    assert list(losses) == list(range(1, 641))  # of four attempts, which did 36 steps twice
    assert losses == {step: pytest.approx(loss_at(step), rel=1e-12) for step in losses}
    assert list(values_of(rows, "gradient_norm")) == list(losses)
    assert {25, 300, 450, 625} <= values_of(rows, "accuracy").keys()
    kept = {
        save.step: (save.stall_seconds, save.took_seconds, save.size_bytes)
        for attempt in story.attempts
        for save in attempt.saves
        if attempt.redone_from is None or save.step <= attempt.redone_from
    }
    found = [values_of(rows, name) for name in (STALL, TOOK, SIZE)]
    assert {step: tuple(values[step] for values in found) for step in found[0]} == kept
    assert len(kept) > 20


def test_goodput_is_that_of_the_account_then(grown):
    story = read_story(LocalStorage(grown), NOW)
    found = values_of(series_of(story), GOODPUT)
    events: dict[int, list] = {}
    for segment in read_events(LocalStorage(grown), Documents(LocalStorage(grown))).segments:
        events.setdefault(segment.header.attempt, []).extend(segment.events)
    tried = 0
    for number, of_it in events.items():
        before = [life_of(earlier, events[earlier]) for earlier in events if earlier < number]
        for at, event in enumerate(of_it, 1):
            step = event.progress.updates if event.kind == "saved" else None
            redone = story.attempts[number - 1].redone_from
            if step is None or (redone is not None and step > redone):
                continue
            assert found[step] == pytest.approx(account_of([*before, life_of(number, of_it[:at])]).share, abs=1e-5)
            tried += 1
    assert tried > 20
    assert found[150] - found[175] > 0.2  # 41 minutes in which nothing ran


def test_values_that_are_not_finite_are_seen():
    """A mean of the others would hide that training has diverged."""
    spreads = {
        "loss": Spread(mean=None, low=None, high=None, not_finite=1),
        "some": Spread(mean=1.0, low=1.0, high=1.0, not_finite=1),
        "fine": Spread(mean=1.0, low=1.0, high=1.0, not_finite=0),
    }
    attempt = Attempt(1, points=[Point(at="2026-03-02T22:10:00+00:00", first=4, last=5, cycles=2, values=spreads)])
    (row,) = series_of(RunStory("root", None, None, NOW, [attempt], None, []))
    assert {name for name, value in row.values.items() if math.isnan(value)} == {"loss", "some"}
    assert (row.first, row.step, row.seconds) == (4, 5, datetime(2026, 3, 2, 22, 10, tzinfo=timezone.utc).timestamp())


def test_run_that_went_back_has_another_course(tmp_path):
    courses = []
    for steps, story, rows in lives(tmp_path):
        courses.append(course_of(story))
        assert list(values_of(rows, "loss")) == list(range(1, steps + 1))
    assert courses == [str(story.run_id), str(story.run_id), f"{story.run_id}/3"]
    redone_from = [attempt.redone_from for attempt in story.attempts]
    assert redone_from == [4, 4, None], "the third went back further than the second"


class Sink:
    def __init__(self):
        self.steps = []
        self.failures = []

    def put(self, story, rows):
        if self.failures:
            raise StorageError(self.failures.pop(0))
        self.steps.append(max((row.step for row in rows), default=0))

    def close(self):
        self.is_closed = True


def follow(root, sinks, monkeypatch, *, wait, every="30s"):
    monkeypatch.setattr("ckptkit.cli.commands.report._monitors", lambda *_: sinks)
    monkeypatch.setattr("ckptkit.cli.commands.report.time", SimpleNamespace(sleep=wait))
    return run_report(str(root), tensorboard="tb", every=every)


def test_prometheus_file_has_newest_values(tmp_path):
    grow_short(tmp_path / "run")
    story = read_story(LocalStorage(tmp_path / "run"), NOW)
    file = tmp_path / "run.prom"
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--prometheus", str(file)])
    assert (result.exit_code, result.output) == (0, "written up to step 75\n")
    families = {one.name: one.samples for one in text_string_to_metric_families(file.read_text())}
    (sample,) = families["ckptkit_optimizer_step"]
    assert (sample.labels, sample.value) == ({"root": str(tmp_path / "run")}, 75)
    values = {one.labels["name"]: one.value for one in families["ckptkit_value"]}
    assert values["loss"] == pytest.approx(loss_at(75), rel=1e-12)
    assert values.keys() == {"loss", "gradient_norm", "accuracy"}
    assert families["ckptkit_goodput_ratio"][0].value == story.account.share
    assert families["ckptkit_save_stall_seconds"][0].value == story.attempts[-1].saves[-1].stall_seconds
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.prom"]  # no page
    min((tmp_path / "run/events").iterdir()).write_bytes(b"{}\n")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--prometheus", str(file)])
    assert (result.exit_code, result.output) == (1, "written up to step 75\n")  # one of its files is corrupt
    link = tmp_path / "link.prom"
    link.symlink_to(file)
    file.write_text("")
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--prometheus", str(link)]).exit_code == 1
    assert link.is_symlink()
    assert "ckptkit_optimizer_step" in file.read_text()


def test_follower_writes_until_the_run_has_finished(tmp_path, monkeypatch, capsys):
    """It may begin before the run does, and it outlives failures; each outage is told once."""
    sink, clock = Sink(), Clock()
    life = Life(LocalStorage(tmp_path / "run"), clock, "node", save=SaveEvery(optimizer_steps=4))
    moments = iter(range(8))

    def wait(seconds):
        assert seconds == 30
        match next(moments):
            case 2:
                life.manager.restore(life.run)
            case 3:
                life.train(8)
                sink.failures = ["no server", "no server"]
            case 6:
                sink.failures = ["no server"]
            case 7:
                life.train(12)
                life.manager.save_final(life.run)
                life.manager.close()

    assert follow(tmp_path / "run", [sink], monkeypatch, wait=wait) == 0
    assert sink.steps[-2:] == [8, 12]
    assert sink.is_closed
    said = capsys.readouterr()
    assert said.out == "written up to step 12\n"
    first, *others = [line for line in said.err.splitlines() if "trying again" in line]
    assert "so there is no run" in first
    assert others == ["no server; trying again"] * 2
    complete = Life(LocalStorage(tmp_path / "run"), clock, "node")
    with complete.manager:
        complete.manager.restore(complete.run)
    assert follow(tmp_path / "run", [Sink()], monkeypatch, wait=pytest.fail) == 0  # nothing was left to be done
    broken, other = Sink(), Sink()
    broken.failures = ["no server"]
    with pytest.raises(StorageError, match="no server"):  # it stops no other monitor
        follow(tmp_path / "run", [broken, other], monkeypatch, wait=pytest.fail, every=None)
    assert other.steps == [12]


def test_wrong_usage_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for options, words in (
        ({"prometheus": "x.prom"}, r"pip install 'mindspore-ckptkit\[prometheus\]'"),
        ({"every": "30s"}, "--every goes with"),
        ({"tensorboard": "tb", "as_json": True}, "--json prints a document"),
        ({"tensorboard": "tb", "every": "soon"}, "--every: expected a duration"),
    ):
        with pytest.raises(WrongUsageError, match=words):
            run_report(str(tmp_path), **options)
    with pytest.raises(CheckpointNotFoundError):
        follow(tmp_path / "none", [Sink()], monkeypatch, wait=pytest.fail, every=None)


def shown(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.metrics
@pytest.mark.parametrize("same_process", [True, False])
def test_tensorboard_shows_each_step_once(tmp_path, same_process):
    sink = TensorBoard(str(tmp_path / "tb"))
    for steps, story, rows in lives(tmp_path / "run"):
        sink = sink if same_process else TensorBoard(str(tmp_path / "tb"))
        sink.put(story, rows)
        sink.put(story, rows)
        found = shown(tmp_path / "tb/ckptkit")
        assert [step for step, _ in found["loss"]] == list(range(1, steps + 1))
        assert [value for _, value in found["loss"]] == [
            pytest.approx(loss_at(step), rel=1e-6)
            for step in range(1, steps + 1)  # it has 32 bits
        ]
        assert found[GOODPUT][-1][0] == steps // 4 * 4  # at each save
        assert [step for step, _ in found[STALL]] == list(range(4, steps + 1, 4))
        if not same_process:
            sink.close()
    sink.close()


OF_OTHERS = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's own, of its database


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.mark.metrics
@pytest.mark.parametrize("same_process", [True, False])
@pytest.mark.usefixtures("server")
@OF_OTHERS
def test_mlflow_has_one_run_that_continues(tmp_path, same_process):
    import mlflow

    sink = MLflow("digits")
    for _, story, rows in lives(tmp_path / "run"):
        sink = sink if same_process else MLflow("digits")
        sink.put(story, rows)
        sink.put(story, rows)
    client = mlflow.MlflowClient()
    found = client.search_runs([client.get_experiment_by_name("digits").experiment_id], order_by=["start_time ASC"])
    curves = [[(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "loss")] for run in found]
    assert [[step for step, _ in curve] for curve in curves] == [list(range(1, steps + 1)) for steps in (14, 16)]
    assert all(value == pytest.approx(loss_at(step), rel=1e-12) for curve in curves for step, value in curve)
    assert [run.info.status for run in found] == ["KILLED", "KILLED"]
    assert {run.data.tags["ckptkit.root"] for run in found} == {str(tmp_path / "run")}
    assert [one.step for one in client.get_metric_history(found[-1].info.run_id, GOODPUT)] == [4, 8, 12, 16]


@pytest.mark.metrics
@pytest.mark.usefixtures("server")
@OF_OTHERS
def test_monitor_that_cannot_be_reached_is_named(tmp_path, monkeypatch):
    grow_short(tmp_path / "run")
    (tmp_path / "tb").write_text("a file")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--tensorboard", str(tmp_path / "tb")])
    assert result.exit_code == 3
    assert f"could not write TensorBoard's files to {tmp_path / 'tb'}" in result.output
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--mlflow", "digits"])
    assert result.exit_code == 3
    assert "could not log to MLflow (http://127.0.0.1:9)" in result.output


def test_json_adds_up(grown, capsys):
    assert run_goodput(str(grown), as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["classes"]) == set(CLASSES)
    assert sum(found["classes"].values()) == pytest.approx(found["seconds"])
    assert sum(sum(life["seconds"].values()) for life in found["lives"]) == pytest.approx(found["seconds"])
    assert found["goodput"] == pytest.approx(found["classes"]["trained"] / found["seconds"])
    assert [life["how"] for life in found["lives"]] == [None, "failed", "preempted", "finished"]
    assert (found["is_lower_bound"], found["is_rough"], found["chosen"]) == (True, False, None)
    assert found["undisturbed_seconds"] < found["seconds"]
    half, same, double = found["intervals"]
    assert half["interval_seconds"] * 4 == same["interval_seconds"] * 2 == double["interval_seconds"]
    assert half["saving_seconds"] > same["saving_seconds"] > double["saving_seconds"]
    assert half["lost_seconds"] < same["lost_seconds"] < double["lost_seconds"]


def test_stall_and_time_in_all_are_the_same_everywhere(tmp_path, capsys):
    life = Life(LocalStorage(tmp_path), Clock(), "node")
    with life.manager:
        life.manager.restore(life.run)
        life.train(160)
        life.manager.save_final(life.run)
    totals, story = life.manager.totals, read_story(LocalStorage(tmp_path), NOW)
    stall, seconds = story.account.stall_seconds, story.account.seconds
    assert totals.stall_seconds == stall != 0
    each = f"kept training waiting for {span(stall / totals.saves)} each"
    assert each in str(totals)
    assert any(each in note for note in judge(story).good)
    page = page_of(story)
    assert f'<div class="value">{span(stall)}</div><div class="more">{stall / seconds:.2%} of the time' in page
    assert f"{span(seconds)} in all" in page
    assert run_goodput(str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{span(seconds)} in 1 life: ")
    assert re.search(rf"^stall of saves +{re.escape(span(stall))} ", printed, flags=re.MULTILINE)
    assert run_report(str(tmp_path), as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["stall_seconds"] == document["goodput"]["classes"]["saving"] == stall
    min((tmp_path / "events").iterdir()).write_bytes(b"{}\n")  # damage is named, and the rest shown
    assert run_goodput(str(tmp_path)) == 1
    assert "cannot be used" in capsys.readouterr().out
