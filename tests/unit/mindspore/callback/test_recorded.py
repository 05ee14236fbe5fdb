"""What ``Model.train`` records is what the training computed, and recording changes no bit of it."""

from __future__ import annotations

from datetime import datetime, timezone

from mindspore.train import Callback
from support.training import Job, K, accumulation_cell, checkpoints, pipeline, tensors

import ckptkit as ck
from ckptkit.format.documents import digest_of
from ckptkit.format.events import Began, Ended, Point
from ckptkit.run import attempt
from ckptkit.run.event_log import read_events
from ckptkit.run.index import Documents
from ckptkit.storage import open_storage
from ckptkit.tools.report.health import judge
from ckptkit.tools.report.story import read_story


class Watch(Callback):
    def __init__(self, stop_at):
        self.losses, self.norms, self._stop_at = [], [], stop_at

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        self.losses.append(float(params.net_outputs.asnumpy()))
        if params.train_network.updated:
            self.norms.append(float(params.train_network.gradient_norm.asnumpy()))
        if params.cur_step_num == self._stop_at:
            raise KeyboardInterrupt


def train(root, *, epochs=3, stop_at=None, remainder="carry", **options):
    job = Job(data=lambda: pipeline(40), cell=lambda: accumulation_cell(K, clip_norm=1.0, remainder=remainder))
    watch = Watch(stop_at)
    ckpt = checkpoints(root, save=ck.SaveEvery(optimizer_steps=2), read_only=[Watch], ignore=(), **options)
    try:
        ckpt.train(job.model, epochs, job.data, callbacks=[watch])
    except KeyboardInterrupt:
        assert stop_at is not None
    return watch, digest_of(b"".join(tensors(job.cell).values()))


def events_in(root):
    storage = open_storage(root)
    files = read_events(storage, Documents(storage))
    assert not files.problems
    return [event for segment in files.segments for event in segment.events]


def points_in(root) -> list[Point]:
    return [event for event in events_in(root) if isinstance(event, Point)]


def test_recording_is_accurate_and_changes_no_bit(tmp_path):
    watch, digest = train(tmp_path / "with", epochs=2)
    points = points_in(tmp_path / "with")
    cycles = len(watch.losses) // K
    assert [point.last for point in points] == list(range(1, cycles + 1))
    means = [sum(watch.losses[at * K : at * K + K]) / K for at in range(cycles)]
    assert [point.values["loss"].mean for point in points] == means
    assert [point.values["gradient_norm"].mean for point in points] == watch.norms
    _, other = train(tmp_path / "without", epochs=2, events=False)
    assert digest == other
    assert not (tmp_path / "without/events").exists()


def test_repeated_steps_record_identical_points(tmp_path):
    train(tmp_path, stop_at=22)  # in mid-cycle; the last save is of step 4
    train(tmp_path)
    began = [event for event in events_in(tmp_path) if isinstance(event, Began)]
    ended = [event for event in events_in(tmp_path) if isinstance(event, Ended)]
    assert [event.how for event in ended] == ["interrupted", "finished"]
    assert began[1].progress.updates == 4
    points = points_in(tmp_path)
    assert [point.last for point in points] == [1, 2, 3, 4, 5, 5, 6, 7]
    assert points[4].values == points[5].values


def test_a_flushed_remainder_has_its_norm(tmp_path):
    watch, _ = train(tmp_path, epochs=1, remainder="flush")
    points = points_in(tmp_path)
    # 10 batches: two whole cycles and one of two micro-steps.
    assert [point.last for point in points] == [1, 2, 3]
    assert points[2].values["loss"].mean == sum(watch.losses[8:10]) / 2
    assert all("gradient_norm" in point.values for point in points)


def test_second_start_of_complete_training_says_so(tmp_path, monkeypatch):
    for _ in range(2):
        train(tmp_path, epochs=1)
    assert [event.how for event in events_in(tmp_path) if isinstance(event, Ended)] == ["finished", "complete"]
    story = read_story(open_storage(tmp_path), datetime.now(timezone.utc))
    assert judge(story).headline == "The training is complete: the last attempt found nothing left to do."
    assert judge(story).bad == []
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(attempt, "sign_of_life", lambda *_: "attempt 1 on another machine")
    train(tmp_path, epochs=1)  # and takes nothing from a living process
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
