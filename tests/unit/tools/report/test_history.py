import json
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.runs import report_lives as lives
from support.runs.report_lives import Clock, Life, grow_short
from support.runs.scenario import AT_6, history
from support.runs.scenario import Life as RunLife
from unit.run.test_account import watched

from ckptkit.errors import CheckpointNotFoundError
from ckptkit.format.events import LeftOut, Point, Saved, Spread, encode_segment
from ckptkit.run.goodput import Life as EventLife
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.report.health import judge, lines_of
from ckptkit.tools.report.history import Attempt, FailedSave, RunStory, Save, read_story, time_of

NOW = datetime(2026, 3, 3, 12, tzinfo=timezone.utc)
HOUR = NOW - timedelta(hours=1)


def story_of(root: Path) -> RunStory:
    return read_story(LocalStorage(root), NOW)


def test_the_attempts_are_told_as_they_went(grown):
    story = story_of(grown)
    assert story.problems == []
    # The first was killed at 165 after its save at 150, and could not tell.
    assert [
        (attempt.how, attempt.error, attempt.host, attempt.from_step, attempt.to_step, attempt.redone_from)
        for attempt in story.attempts
    ] == [
        (None, None, "node-a17", 0, 150, 150),
        ("failed", "RuntimeError", "node-a17", 150, 331, 325),
        ("preempted", "SystemExit", "node-c02", 325, 480, 450),
        ("finished", None, "node-c03", 450, 640, None),
    ]
    assert story.redone_steps == (331 - 325) + (480 - 450)
    assert (story.step, story.epoch) == (640, 25)
    assert (story.repeated.same, story.repeated.different) == (list(range(451, 481)), [])
    assert story.latest == "a000004-c0000000640-m0000" == story.attempts[-1].saves[-1].checkpoint


def of_attempts(*attempts: Attempt) -> RunStory:
    return RunStory("root", None, None, NOW, [*attempts], None, [])


def test_story_without_events_uses_documents_and_manifests(root):
    shutil.rmtree(root / "events")
    story = story_of(root)
    assert story.problems == []
    # Where the later ones began stood in checkpoints that retention has removed.
    told = [(attempt.how, attempt.has_events, attempt.host, attempt.from_step) for attempt in story.attempts]
    assert told == [
        (None, False, host, begun)
        for host, begun in (("node-a17", 0), ("node-a17", None), ("node-c02", None), ("node-c03", None))
    ]
    assert story.step == 640
    there = {path.parent.name for path in (root / "checkpoints").glob("*/manifest.json")}
    assert {save.checkpoint for _, save in story.saves} == there
    assert all(save.stall_seconds and save.at and save.took_seconds is None for _, save in story.saves)
    verdict = judge(story)
    assert verdict.health == "attention"
    assert any("Attempts 1, 2, 3, 4 recorded nothing" in note for note in verdict.attention)
    folder = root / "checkpoints/a000004-c0000000640-m0000"  # it is listed, and then it is gone
    gone = Fault(lambda: shutil.rmtree(folder), operations={"read"}, key=f"*/{folder.name}/manifest.json", nth=2)
    assert read_story(FaultyStorage(LocalStorage(root), [gone]), NOW).problems == []
    assert gone.fired == 1
    (root / "attempts/000001.json").write_text("{}")
    assert story_of(root).attempts[0].from_step is None


def test_starts_of_a_complete_training_finish_it(tmp_path):
    grow_short(tmp_path)
    clock = Clock()
    clock.pass_by(days=1)
    headlines = []
    for steps in (0, 0, 76):  # nothing was left to be done, twice; then more was, and the loop saved nothing at its end
        again = Life(LocalStorage(tmp_path), clock, "node")
        with again.manager:
            again.manager.restore(again.run)
            again.train(steps)
        headlines.append(judge(story_of(tmp_path)).headline)
    assert [attempt.how for attempt in story_of(tmp_path).attempts] == ["finished", "complete", "complete", "closed"]
    assert headlines[1:] == [
        "The training is complete: the last attempt found nothing left to do.",
        "The last attempt ended without an error, and saved nothing at its end.",
    ]


def lost(step: int) -> FailedSave:
    return FailedSave(f"a000001-c{step:010d}-m0000", step, NOW, "StorageError", f"no room at {step}")


def saved(step: int, stall_seconds: float = 0.0) -> Save:
    return Save(f"a000001-c{step:010d}-m0000", step, 0, NOW, 10, 1.0, stall_seconds)


def point(step: int, mean: float | None) -> Point:
    spread = Spread(mean=mean, low=mean, high=mean, not_finite=int(mean is None))
    return Point(at="", first=step, last=step, cycles=1, values={"loss": spread, "rate": spread, "a": spread})


def test_steps_are_compared_with_as_many_ranks_only():
    attempts = [
        Attempt(number, world_size=ranks, points=[point(1, mean), point(2, mean)])
        for number, (ranks, mean) in enumerate([(2, 1.0), (4, 2.0), (4, 2.0), (2, 3.0), (2, 4.0)], 1)
    ]
    attempts.append(Attempt(6, world_size=2, points=[point(1, 9.0).model_copy(update={"cycles": 2})]))  # a mean
    norm = point(1, 1.0).model_copy(update={"values": {"gradient_norm": point(1, 1.0).values["loss"]}})
    attempts.append(Attempt(7, world_size=4, points=[norm]))  # without a common value
    story = of_attempts(*attempts)
    assert (story.repeated.same, story.repeated.different) == ([1, 2], [1, 2])
    steps = ((0, 100), (50, 60), (70, 90), (0, None))  # one that began far ahead has lost nothing
    story_of_steps = of_attempts(*(Attempt(n, from_step=begin, to_step=end) for n, (begin, end) in enumerate(steps, 1)))
    assert story_of_steps.redone_steps == 50 + 90
    assert not any("gave the same loss" in note for note in judge(story).good)  # of some only


VERDICTS = (
    (
        {"failures": [lost(20), lost(30)], "saves": [saved(10)]},
        "bad",
        "The last 2 saves failed: StorageError: no room at 30",
    ),
    ({"failures": [lost(0)]}, "bad", "The last 1 save failed: StorageError: no room at 0"),
    # The final save repeated it.
    (
        {"failures": [lost(20)], "saves": [saved(10), saved(20)]},
        "attention",
        "1 save failed on the way; later ones were committed.",
    ),
    (
        {"points": [*(point(step, None) for step in range(1, 40)), point(40, 1.0), point(41, None)]},
        "bad",
        "a, loss, rate: the newest values are not finite (NaN or infinite).",
    ),
    ({"points": [point(1, None), *(point(step, 1.0) for step in range(2, 22))]}, "good", None),
    ({"left_out": 7}, "attention", "7 events could not be stored, so the plots have gaps."),
    ({"skipped_saves": 1}, "attention", "1 save was due while the previous one was still being written, and skipped."),
    ({"spent": {"saving": 100, "training": 3500}}, "attention", "Saves kept training waiting for 2.8% of the time."),
    ({"spent": {"saving": 70, "training": 3530}}, "good", None),
    ({"spent": {"saving": 20, "training": 39}}, "good", None),  # too short
)


def test_verdict_names_what_needs_somebody():
    for fields, health, note in VERDICTS:
        attempt = {**fields}
        lives = [EventLife(1, how="finished", spent=attempt.pop("spent", {}))]
        last = Attempt(1, how="finished", has_events=True, from_step=0, to_step=50, **attempt)
        story = RunStory("root", None, None, NOW, [last], "a000001-c0000000010-m0000", [], lives)
        verdict = judge(story)
        notes = [*verdict.bad, *verdict.attention]
        assert (verdict.health, len(notes)) == (health, int(note is not None)), attempt
        assert note is None or notes[0].startswith(note), attempt
        assert [*lines_of(story)] == ["The training has finished. Step 50 after 1 attempt.", *notes]


def test_run_that_tells_little_is_told(tmp_path):
    assert time_of("2026-01-01T05:00:00+03:00").hour == 2
    assert time_of("yesterday") is time_of("0001-01-01T00:00:00+23:59") is None
    with pytest.raises(CheckpointNotFoundError, match="nowhere does not exist, so there is no run"):
        story_of(tmp_path / "nowhere")
    life = Life(LocalStorage(tmp_path / "new"), Clock(), "node")
    life.manager.restore(life.run)
    life.train(30)
    assert judge(story_of(tmp_path / "new")).headline.endswith("it is running, or it was killed.")
    unclosed = judge(of_attempts(Attempt(1, has_events=True)))
    assert unclosed.headline.endswith("it was killed, or its loop ended without close().")
    (tmp_path / "lost/events").mkdir(parents=True)
    (tmp_path / "lost/events/a000003-0001.jsonl").write_bytes(b"{")
    story = story_of(tmp_path / "lost")  # all else of it is gone
    assert [attempt.number for attempt in story.attempts] == [3]
    assert [problem.key for problem in story.problems] == ["events/a000003-0001.jsonl"]
    assert judge(story).health == "bad"


DAMAGES = {
    "events/a000002-0003.jsonl": lambda path: path.write_bytes(b"\x00\xff{"),
    "events/a000002-0004.jsonl": lambda path: path.write_bytes(b"x" * (2 << 20)),
    "events/a000002-0002.jsonl": lambda path: path.unlink(),
    "events/a000003-0099.jsonl": lambda path: path.write_bytes((path.parent / "a000002-0001.jsonl").read_bytes()),
    "attempts/000003.json": lambda path: path.write_text("{}"),
    "run.json": lambda path: path.write_text("{}"),
    "checkpoints/a000004-c0000000640-m0000/manifest.json": lambda path: path.write_text("no"),
}


def test_repeated_step_with_different_loss_is_reported(tmp_path, monkeypatch):
    clock, storage = Clock(), LocalStorage(tmp_path)
    for drift, begin in ((0.0, {}), (1e-12, {"checkpoint": "a000001-c0000000025-m0000", "rewind": True})):
        life = Life(storage, clock, "node")
        monkeypatch.setattr(lives, "loss_at", lambda step, drift=drift: 1.0 + drift)
        with life.manager:
            life.manager.restore(life.run, **begin)
            life.train(40)
    story = story_of(tmp_path)
    assert story.repeated.different == list(range(26, 41))
    told = "gave a different loss the second time, the first one at step 26"
    assert any(told in note for note in judge(story).attention)


def test_story_names_damage_and_reports_rest(grown, tmp_path):
    for number, (key, damage) in enumerate(DAMAGES.items()):
        root = shutil.copytree(grown, tmp_path / str(number))
        (root / "events/notes.txt").write_text("x")  # foreign files do not matter
        damage(root / key)
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        story = story_of(root)
        named = key.removeprefix("checkpoints/").removesuffix("/manifest.json")
        assert named in {problem.key for problem in story.problems}, key
        assert (len(story.attempts), story.step, judge(story).health) == (4, 640, "bad"), key
        assert any(note.startswith(named) for note in judge(story).bad), key
        assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    for path in (root / "attempts").iterdir():
        path.write_text("{}")
    story = story_of(root)
    (reason,) = [problem.reason for problem in story.problems if problem.key == "checkpoints"]
    assert reason.startswith("the run has committed checkpoints")
    assert (story.latest, story.step) == (None, 640)


def test_skips_and_events_left_out_are_counted(root):
    """Each save says how many skips there were in its attempt so far."""
    token = json.loads((root / "attempts/000004.json").read_bytes())["token"]
    costs = dict.fromkeys(("took_seconds", "stall_seconds", "queue_seconds"), 1.0)
    given = {"at": NOW.isoformat(), "progress": NumpyRun().progress(), "size_bytes": 1, **costs}
    skips = {650: 2, 660: 3, 670: 3}
    events = [Saved(checkpoint=f"a000004-c{at:010d}-m0000", skipped_saves=n, **given) for at, n in skips.items()]
    events += [LeftOut(at=NOW.isoformat(), events=n) for n in (3, 4)]
    events += [watched(4), watched(5, attempt=None, cause="error")]  # the second never came to an attempt of its own
    number = len([*(root / "events").glob("a000004-*")]) + 1
    (root / f"events/a000004-{number:04d}.jsonl").write_bytes(encode_segment(4, token, number, events)[0])
    story = story_of(root)
    assert story.problems == []
    counts = [(attempt.skipped_saves, attempt.left_out) for attempt in story.attempts]
    assert counts == [(0, 0), (0, 0), (0, 0), (3, 7)]
    assert story.last.cause == "killed"


def test_checkpoint_that_was_passed_over_is_a_problem(tmp_path):
    history(tmp_path)
    (tmp_path / "checkpoints" / AT_6 / "manifest.json").write_text("no")
    RunLife(tmp_path).restore()
    shutil.rmtree(tmp_path / "checkpoints" / AT_6)
    (problem,) = story_of(tmp_path).problems
    assert problem.key == AT_6
    assert "manifest.json" in problem.reason
