from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.runs import report_lives as lives
from support.runs.forge import sealed
from support.runs.report_lives import Clock, Life, grow_short

from ckptkit.core.save_policy import SaveEvery
from ckptkit.errors import CheckpointNotFoundError
from ckptkit.format.events import LeftOut, Point, Saved, Spread, encode_segment
from ckptkit.run.goodput import Life as EventLife
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.interchange import import_weights
from ckptkit.tools.report.health import judge, lines_of
from ckptkit.tools.report.story import Attempt, FailedSave, RunStory, Save, read_story, time_of

NOW = datetime(2026, 3, 3, 12, tzinfo=timezone.utc)
HOUR = NOW - timedelta(hours=1)


def story_of(root: Path) -> RunStory:
    return read_story(LocalStorage(root), NOW)


def test_the_attempts_are_told_as_they_went(grown):
    story = story_of(grown)
    assert story.problems == []
    assert [one.how for one in story.attempts] == [None, "failed", "preempted", "finished"]
    assert [one.error for one in story.attempts] == [None, "RuntimeError", "SystemExit", None]
    assert [one.host for one in story.attempts] == ["node-a17", "node-a17", "node-c02", "node-c03"]
    # The first was killed at 165 after its save at 150, and could not tell.
    assert [(one.from_step, one.to_step) for one in story.attempts] == [(0, 150), (150, 331), (325, 480), (450, 640)]
    assert [one.redone_from for one in story.attempts] == [150, 325, 450, None]
    assert story.redone_steps == (331 - 325) + (480 - 450)
    assert (story.step, story.epoch) == (640, 25)
    assert (story.repeated.same, story.repeated.different) == (list(range(451, 481)), [])
    assert story.latest == "a000004-c0000000640-m0000" == story.attempts[-1].saves[-1].checkpoint


def test_every_save_failure_and_removal_is_there(grown):
    story = story_of(grown)
    there = {path.parent.name for path in (grown / "checkpoints").glob("*/manifest.json")}
    assert {save.checkpoint for _, save in story.saves if save.is_there} == there
    gone = {save.checkpoint for _, save in story.saves if not save.is_there}
    removals = [one for attempt in story.attempts for one in attempt.removals]
    assert {one.checkpoint for one in removals} == gone
    assert all(one.step == int(one.checkpoint[9:19]) and one.at for one in removals)
    assert all(save.stall_seconds and save.took_seconds and save.size_bytes for _, save in story.saves)
    (failure,) = story.attempts[2].failures
    assert (failure.step, failure.error) == (400, "StorageError")


def of_attempts(*attempts: Attempt) -> RunStory:
    return RunStory("root", None, None, NOW, [*attempts], None, [])


def test_steps_and_seconds_of_attempts_are_added_up():
    attempts = [Attempt(1, from_step=0, to_step=100), Attempt(2, from_step=50, to_step=60), Attempt(3, from_step=55)]
    story = of_attempts(*attempts)  # a branch that began far back has not done again what it never came to
    assert story.redone_steps == (100 - 50) + (60 - 55)
    assert story.step == 55
    assert of_attempts(Attempt(1, from_step=0, to_step=100), Attempt(2, from_step=0, to_step=30)).redone_steps == 100
    attempt = Attempt(1, began_at=HOUR)
    for at, step in ((NOW, 5), (HOUR, 3), (None, None)):  # what is heard late shortens none
        attempt.see(at, step)
    assert (attempt.seen_at, attempt.to_step) == (NOW, 5)


def test_story_without_events_uses_documents_and_manifests(root):
    shutil.rmtree(root / "events")
    story = story_of(root)
    assert story.problems == []
    assert [(one.how, one.has_events, one.host) for one in story.attempts] == [
        (None, False, host) for host in ("node-a17", "node-a17", "node-c02", "node-c03")
    ]
    # Where the later ones began stood in checkpoints that retention has removed.
    assert [one.from_step for one in story.attempts] == [0, None, None, None]
    assert story.step == 640
    there = {path.parent.name for path in (root / "checkpoints").glob("*/manifest.json")}
    assert {save.checkpoint for _, save in story.saves} == there
    assert all(save.stall_seconds and save.at and save.took_seconds is None for _, save in story.saves)
    verdict = judge(story)
    assert verdict.health == "attention"
    assert any("Attempts 1, 2, 3, 4 recorded nothing" in note for note in verdict.attention)
    (root / "attempts/000001.json").write_text("{}")
    assert [one.from_step for one in story_of(root).attempts] == [None, None, None, None]


def test_a_short_run_that_went_well_is_healthy(tmp_path):
    grow_short(tmp_path)
    verdict = judge(story_of(tmp_path))
    assert (verdict.health, verdict.headline) == ("good", "The training has finished.")
    assert verdict.bad == verdict.attention == []
    assert verdict.good == [note for note in verdict.good if note.startswith("3 saves kept training waiting")]


def test_starts_of_a_complete_training_finish_it(tmp_path):
    grow_short(tmp_path)
    clock = Clock()
    clock.pass_by(days=1)
    for steps in (0, 0, 76):  # nothing was left to be done, twice; then more was, and the loop saved nothing at its end
        again = Life(LocalStorage(tmp_path), clock, "node")
        with again.manager:
            again.manager.restore(again.run)
            again.train(steps)
        story = story_of(tmp_path)
        assert story.last.how == ("closed" if steps else "complete")
        headline = "The last attempt ended without an error, and saved nothing at its end."
        assert judge(story).headline == (
            headline if steps else "The training is complete: the last attempt found nothing left to do."
        )
    assert [one.how for one in story.attempts] == ["finished", "complete", "complete", "closed"]


def lost(step: int) -> FailedSave:
    return FailedSave(f"a000001-c{step:010d}-m0000", step, NOW, "StorageError", f"no room at {step}")


def saved(step: int, stall_seconds: float = 0.0) -> Save:
    return Save(f"a000001-c{step:010d}-m0000", step, 0, NOW, 10, 1.0, stall_seconds)


def point(step: int, mean: float | None) -> Point:
    spread = Spread(mean=mean, low=mean, high=mean, not_finite=int(mean is None))
    return Point(at="", first=step, last=step, cycles=1, values={"loss": spread, "rate": spread, "a": spread})


def test_steps_are_compared_with_as_many_ranks_only():
    """Of another number of ranks, rank 0 has other batches."""
    attempts = [
        Attempt(number, world_size=ranks, points=[point(1, mean), point(2, mean)])
        for number, (ranks, mean) in enumerate([(2, 1.0), (4, 2.0), (4, 2.0), (2, 3.0), (2, 4.0)], 1)
    ]
    attempts.append(Attempt(6, world_size=2, points=[point(1, 9.0).model_copy(update={"cycles": 2})]))  # a mean
    norm = point(1, 1.0).model_copy(update={"values": {"gradient_norm": point(1, 1.0).values["loss"]}})
    attempts.append(Attempt(7, world_size=4, points=[norm]))  # without a common value
    story = of_attempts(*attempts)
    assert (story.repeated.same, story.repeated.different) == ([1, 2], [1, 2])
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
    assert [one.number for one in story.attempts] == [3]
    assert [one.key for one in story.problems] == ["events/a000003-0001.jsonl"]
    assert judge(story).health == "bad"
    save_file({"w": np.zeros(2)}, tmp_path / "w.safetensors")
    import_weights(tmp_path / "w.safetensors", tmp_path / "imported")
    assert story_of(tmp_path / "imported").copied_from == str(tmp_path / "w.safetensors")


DAMAGES = {
    "events/a000002-0003.jsonl": lambda path: path.write_bytes(b"\x00\xff{"),
    "events/a000002-0004.jsonl": lambda path: path.write_bytes(b"x" * (2 << 20)),
    "events/a000002-0002.jsonl": lambda path: path.unlink(),
    "events/a000003-0099.jsonl": lambda path: path.write_bytes((path.parent / "a000002-0001.jsonl").read_bytes()),
    "attempts/000003.json": lambda path: path.write_text("{}"),
    "run.json": lambda path: path.write_text("{}"),
    "checkpoints/a000004-c0000000640-m0000/manifest.json": lambda path: path.write_text("no"),
}


def test_documents_of_newer_versions_are_told(tmp_path):
    grow_short(tmp_path)
    before = story_of(tmp_path)
    for key in ("run.json", "attempts/000001.json"):
        fields = json.loads((tmp_path / key).read_bytes())
        (tmp_path / key).write_bytes(sealed({**fields, "format_version": 2}))
    story = story_of(tmp_path)
    assert {"run.json", "attempts/000001.json"} <= {one.key for one in story.problems}
    assert [one.points for one in story.attempts] == [one.points for one in before.attempts]


def test_repeated_step_with_different_loss_is_reported(tmp_path, monkeypatch):
    clock, storage = Clock(), LocalStorage(tmp_path)
    for drift in (0.0, 1e-12):
        life = Life(storage, clock, "node")
        monkeypatch.setattr(lives, "loss_at", lambda step, drift=drift: 1.0 + drift)
        with life.manager:
            first = [] if drift == 0 else ["a000001-c0000000025-m0000"]
            life.manager.restore(life.run, **({"checkpoint": first[0], "rewind": True} if first else {}))
            life.train(40)
    story = story_of(tmp_path)
    assert story.repeated.different == list(range(26, 41))
    assert any(
        "gave a different loss the second time, the first one at step 26" in one for one in judge(story).attention
    )


def test_story_names_damage_and_reports_rest(grown, tmp_path):
    for key, damage in DAMAGES.items():
        root = tmp_path / str(len([*tmp_path.iterdir()]))
        shutil.copytree(grown, root)
        (root / "events/notes.txt").write_text("x")  # foreign files do not matter
        damage(root / key)
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        story = story_of(root)
        named = key.removeprefix("checkpoints/").removesuffix("/manifest.json")
        assert named in {problem.key for problem in story.problems}, key
        assert (len(story.attempts), story.step) == (4, 640), key
        assert judge(story).health == "bad", key
        assert any(note.startswith(named) for note in judge(story).bad), key
        assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    for path in (root / "attempts").iterdir():
        path.write_text("{}")
    story = story_of(root)
    (problem,) = [one for one in story.problems if one.key == "checkpoints"]
    assert problem.reason.startswith("the run has committed checkpoints")
    assert (story.latest, story.step) == (None, 640)


def test_skips_and_events_left_out_are_counted(root):
    """Each save says how many skips there were in its attempt so far."""
    token = json.loads((root / "attempts/000004.json").read_bytes())["token"]
    costs = dict.fromkeys(("took_seconds", "stall_seconds", "queue_seconds"), 1.0)
    progress, at = NumpyRun().progress(), NOW.isoformat()
    events = [
        Saved(at=at, checkpoint=name, progress=progress, size_bytes=1, skipped_saves=many, **costs)
        for name, many in ((f"a000004-c{step:010d}-m0000", many) for step, many in ((650, 2), (660, 3), (670, 3)))
    ]
    events += [LeftOut(at=at, events=many) for many in (3, 4)]
    number = len([*(root / "events").glob("a000004-*")]) + 1
    data, _ = encode_segment(4, token, number, events)
    (root / f"events/a000004-{number:04d}.jsonl").write_bytes(data)
    story = story_of(root)
    assert story.problems == []
    assert [(one.skipped_saves, one.left_out) for one in story.attempts] == [(0, 0), (0, 0), (0, 0), (3, 7)]


def test_checkpoint_that_was_passed_over_is_a_problem(tmp_path):
    clock, storage = Clock(), LocalStorage(tmp_path)
    newest = tmp_path / "checkpoints/a000001-c0000000003-m0000"
    for steps in (3, 5):
        life = Life(storage, clock, "node", save=SaveEvery(optimizer_steps=1))
        with life.manager:
            life.manager.restore(life.run)
            life.train(steps)
        if steps == 3:
            (newest / "manifest.json").write_text("no")
    shutil.rmtree(newest)
    (problem,) = story_of(tmp_path).problems
    assert problem.key == newest.name
    assert "manifest.json" in problem.reason


def test_checkpoint_removed_meanwhile_is_no_problem(root):
    """It has been listed, no event tells of it, and then its manifest is gone."""
    shutil.rmtree(root / "events")
    name = "a000004-c0000000640-m0000"
    gone = Fault(
        lambda: shutil.rmtree(root / "checkpoints" / name), operations={"read"}, key=f"*/{name}/manifest.json", nth=2
    )
    story = read_story(FaultyStorage(LocalStorage(root), [gone]), NOW)
    assert gone.fired == 1
    assert story.problems == []
    assert story.attempts[-1].saves[-1].stall_seconds is None
    assert all(save.stall_seconds for _, save in story.saves if save.checkpoint != name)


def test_events_with_foreign_token_are_refused(root, tmp_path):
    grow_short(tmp_path / "other")
    shutil.copy(tmp_path / "other/events/a000001-0001.jsonl", root / "events/a000001-0001.jsonl")
    story = story_of(root)
    (problem,) = story.problems
    assert problem.reason == "events/a000001-0001.jsonl has another token than attempts/000001.json"


def test_times_are_read_as_utc():
    for text, hour in {
        "2026-01-01T05:00:00+00:00": 5,
        "2026-01-01T05:00:00Z": 5,
        "2026-01-01T05:00:00": 5,
        "2026-01-01T05:00:00+03:00": 2,
        "yesterday": None,
        "": None,
        "0001-01-01T00:00:00+23:59": None,
    }.items():
        at = time_of(text)
        assert (at.hour if at else None) == hour, text
