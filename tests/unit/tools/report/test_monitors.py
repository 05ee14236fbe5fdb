"""``ckptkit report --tensorboard, --mlflow, --prometheus``: what the fields' own readers find there.

Those marked ``metrics`` need ``pip install '.[metrics]'``.
"""

from __future__ import annotations

import sys
from datetime import datetime, timezone

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.runs.report_lives import Clock, Life, dying, grow_short, loss_at
from typer.testing import CliRunner

from ckptkit.cli import app
from ckptkit.cli.commands.report import run_report
from ckptkit.cli.errors import WrongUsageError
from ckptkit.core.save_policy import SaveEvery
from ckptkit.errors import CheckpointNotFoundError, StorageError
from ckptkit.storage import LocalStorage
from ckptkit.tools.report.monitors import GOODPUT, STALL, MLflow, TensorBoard, series_of
from ckptkit.tools.report.story import read_story

NOW = datetime(2026, 3, 3, 12, tzinfo=timezone.utc)


class Sink:
    """Notes what it is given, and fails when it is told to."""

    def __init__(self):
        self.steps = []
        self.failures = []

    def put(self, story, rows):
        if self.failures:
            raise StorageError(self.failures.pop(0))
        self.steps.append(max((row.step for row in rows), default=0))

    def close(self):
        self.is_closed = True


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


def follow(root, sinks, monkeypatch, *, wait, every="30s"):
    monkeypatch.setattr("ckptkit.cli.commands.report._monitors", lambda *_: sinks)
    return run_report(str(root), tensorboard="tb", every=every, clock=lambda: NOW, wait=wait)


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


def test_follower_writes_until_the_run_has_finished(tmp_path, monkeypatch, capsys):
    """It may begin before the run does, and it outlives failures, each of which is told once."""
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
                life.train(12)
                life.manager.save_final(life.run)
                life.manager.close()

    assert follow(tmp_path / "run", [sink], monkeypatch, wait=wait) == 0
    assert sink.steps[-2:] == [8, 12]
    assert sink.is_closed
    said = capsys.readouterr()
    assert said.out == "written up to step 12\n"
    first, second = [line for line in said.err.splitlines() if "trying again" in line]
    assert "so there is no run" in first
    assert second == "no server; trying again"


def test_one_monitor_that_fails_stops_no_other(tmp_path, monkeypatch):
    grow_short(tmp_path)
    broken, other = Sink(), Sink()
    broken.failures = ["no server"]
    with pytest.raises(StorageError, match="no server"):
        follow(tmp_path, [broken, other], monkeypatch, wait=pytest.fail, every=None)
    assert other.steps == [75]


def test_wrong_usage_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    grow_short(tmp_path)
    with pytest.raises(WrongUsageError, match=r"pip install 'mindspore-ckptkit\[prometheus\]'"):
        run_report(str(tmp_path), prometheus="x.prom")
    with pytest.raises(WrongUsageError, match="--every goes with"):
        run_report(str(tmp_path), every="30s")
    with pytest.raises(WrongUsageError, match="--json prints a document"):
        run_report(str(tmp_path), tensorboard="tb", as_json=True)
    with pytest.raises(WrongUsageError, match="--every: expected a duration"):
        follow(tmp_path, [Sink()], monkeypatch, wait=pytest.fail, every="soon")
    with pytest.raises(CheckpointNotFoundError):
        follow(tmp_path / "none", [Sink()], monkeypatch, wait=pytest.fail, every=None)


def shown(folder):
    """What TensorBoard shows: steps and values of each curve."""
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
    """A run that goes back is another one there, with the whole curve."""
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
