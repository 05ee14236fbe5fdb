"""What a manager does differently under `ckptkit doctor`, step by step."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import ranked_training
from support.options import grouped

from ckptkit.core.save_policy import SaveEvery
from ckptkit.errors import ResumeError, StateMismatchError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.mirrors import Chain
from ckptkit.run.catalog import list_checkpoints
from ckptkit.run.upload import Uploader
from ckptkit.storage import open_storage
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.doctor.lives.recording import variables
from ckptkit.tools.doctor.lives.trace import (
    Begun,
    LifePlan,
    Refused,
    SavedEvent,
    Stepped,
    StoppedEvent,
    Unrestored,
    read_trace,
    scratch_run,
)


class Seen(ranked_training.Run):
    """A run that a rehearsal can look into; `drift` is what a save changes."""

    drift = 0

    def observe(self):
        return {"weights/w": self.digest(), "rng/numpy": str(self.drift)}, {}

    def drawing_in_state_dict(self):
        return ["it"]


class Drawing(Seen):
    def capture(self):
        self.drift += 1
        return super().capture()


@pytest.fixture
def follow(tmp_path, monkeypatch):
    def followed(name: str = "plan", **fields):
        given = {"root": str(tmp_path / "scratch"), "trace": str(tmp_path / "trace"), "stop": 99, **fields}
        plan = tmp_path / f"{name}.json"
        plan.write_text(LifePlan(**given).model_dump_json())
        for variable, value in variables(plan).items():
            monkeypatch.setenv(variable, value)
        return lambda: read_trace(Path(given["trace"]))

    return followed


@pytest.fixture
def trace(follow):
    return follow(saves=(2, 4))


def trained(root: Path, run: NumpyRun, steps: int, **options) -> CheckpointManager:
    manager = CheckpointManager(root, **grouped(**options))
    manager.restore(run)
    for _ in range(steps):
        run.train_step()
        manager.step(run)
    return manager


def test_only_planned_saves_happen_in_scratch_folder(tmp_path, root, trace):
    before = signal.getsignal(signal.SIGTERM)
    manager = trained(root, Seen(), 5, save=SaveEvery(micro_steps=1), mirror=tmp_path / "mirror")
    assert signal.getsignal(signal.SIGTERM) == before
    assert not root.exists()
    assert not (tmp_path / "mirror").exists()
    assert not scratch_run(tmp_path / "scratch", str(tmp_path / "mirror")).exists()
    assert [info.progress.batches_delivered for info in manager.checkpoints()] == [2, 4]
    begun, *events = trace()
    assert begun.digests.keys() == events[0].digests.keys()
    assert begun.mirrors == ()
    assert begun == Begun(url=str(root), step=0, checkpoint=None, digests=begun.digests, environment={"mode": "none"})
    assert [(type(event), event.step) for event in events] == [
        *[(Stepped, 1), (Stepped, 2), (SavedEvent, 2), (Stepped, 3), (Stepped, 4), (SavedEvent, 4), (Stepped, 5)]
    ]
    assert manager.url.startswith(str(tmp_path / "scratch"))
    assert list((tmp_path / "scratch").rglob("events")) == []


def test_life_ends_at_its_stop_or_once_it_has_shown_enough(tmp_path, root, follow, monkeypatch):
    """Not after its first step, from which a micro-step's cost cannot be told."""
    monkeypatch.setattr("ckptkit.tools.doctor.lives.recording._end", lambda: sys.exit(0))
    now = time.monotonic()
    for name, enough, steps in (("over", now - 1, 2), ("later", now + 3600, 4)):
        trace = follow(name, root=str(tmp_path / name), trace=str(tmp_path / f"{name}.trace"), stop=4, enough=enough)
        with pytest.raises(SystemExit):
            trained(root, Seen(), 9)
        assert trace()[-1] == StoppedEvent(step=steps)
        times = [now, *(event.at for event in trace() if isinstance(event, Stepped)), time.monotonic()]
        assert times == sorted(times)


class Killed(Exception):  # noqa: N818 - it stands for a death
    """In place of SIGKILL."""


@pytest.fixture
def own(root, follow, monkeypatch):
    """Trains under a plan that keeps the script's own saves, until it is killed or 8 micro-steps are done."""

    def lived(run: NumpyRun, *, waits: bool, mirror: Sequence[Path] = (), asks: bool = False, **more):
        trace = follow(**{"stop": 9, "own_saves": True, **more})

        def kill(_, number):
            assert number == signal.SIGKILL
            raise Killed

        monkeypatch.setattr("ckptkit.tools.doctor.lives.recording.os.kill", kill)
        manager = CheckpointManager(root, mirror=mirror, save=SaveEvery(micro_steps=99 if asks else 3))
        manager.restore(run)
        with contextlib.suppress(Killed):
            for _ in range(8):
                run.train_step()
                manager.step(run)
                if asks and run.batches % 3 == 0:
                    manager.save(run)
                if waits:
                    manager.wait()
        assert not any(path.exists() for path in (root, *mirror))
        saved = [info.progress.batches_delivered for info in manager.checkpoints()]
        steps = [event.step for event in trace() if isinstance(event, Stepped)]
        return saved, steps[-1], [event for event in trace() if isinstance(event, SavedEvent)]

    return lived


@pytest.mark.parametrize(("dies", "life"), [(False, ([3, 6], 8, [])), (True, ([3], 4, [SavedEvent(step=3)]))])
def test_own_schedule_saves_and_the_process_may_die_then(own, dies, life):
    assert own(Seen(), waits=True, kill_when_saved=dies) == life


@pytest.mark.parametrize("asks", [False, True], ids=["by its schedule", "by a call of save()"])
def test_process_dies_once_its_own_save_is_at_a_mirror(own, tmp_path, monkeypatch, asks):
    """The commit at the root alone is not enough: the next life has only what a mirror holds."""
    asked = threading.Event()
    settle, upload = Chain.settle, Uploader.upload

    def settled(self, *given):
        asked.set()
        settle(self, *given)

    def slow(self, *given):
        assert asked.wait(60)
        return upload(self, *given)

    monkeypatch.setattr(Chain, "settle", settled)
    monkeypatch.setattr(Uploader, "upload", slow)
    mirrors = [tmp_path / "near", tmp_path / "far"]
    assert own(Seen(), waits=False, mirror=mirrors, asks=asks, kill_when_saved=True) == ([3], 5, [SavedEvent(step=3)])
    for mirror in mirrors:
        copies = list_checkpoints(open_storage(scratch_run(tmp_path / "scratch", str(mirror))))
        assert [info.progress.batches_delivered for info in copies] == [3]


def test_second_training_of_root_continues_the_first(root, trace):
    trained(root, Seen(), 3).close()
    resumed = Seen()
    manager = CheckpointManager(root)
    point = manager.restore(resumed, checkpoint="a000001-c0000000009-m0000")  # the name counts for nothing
    assert point.batches_delivered == 2
    assert trace()[-1].checkpoint is not None
    manager.step(resumed)
    assert isinstance(trace()[-1], Begun), "nothing was trained"
    resumed.train_step()
    manager.step(resumed)
    assert [event.step for event in trace() if isinstance(event, Stepped)] == [1, 2, 3, 3]


def test_replay_of_a_script_with_two_runs_is_refused(tmp_path, root, follow):
    trace = follow(run=str(tmp_path / "run"), stop=9)
    trained(root, Seen(), 3).close()
    with pytest.raises(ResumeError, match="but a replay is of one run"):
        CheckpointManager(tmp_path / "other").restore(Seen())
    refused = trace()[-1]
    assert isinstance(refused, Refused)
    assert f"{tmp_path / 'other'} and {root}" in refused.why


def test_changes_by_save_are_noted_with_their_objects(root, trace):
    trained(root, Seen(), 2)
    saved = trace()[-1]
    assert saved == SavedEvent(step=2, stall_seconds=saved.stall_seconds)
    assert 0 < saved.stall_seconds < 60
    drawing = Drawing()
    manager = CheckpointManager(root, save=SaveEvery(micro_steps=99))
    manager.restore(drawing)
    drawing.train_step()
    drawing.train_step()
    manager.step(drawing)
    saved = trace()[-1]
    assert (saved.step, saved.moved, saved.by) == (4, ("rng/numpy",), ("it",))


def test_state_not_followed_or_restored_is_told(root, trace):
    with pytest.raises(ResumeError, match=r"NumpyRun.*observer"):
        CheckpointManager(root).restore(NumpyRun())
    assert isinstance(trace()[-1], Refused)
    run = Seen()
    manager = trained(root, run, 0)
    with pytest.raises(ResumeError, match="count_delivered"):
        manager.step(run)
    assert isinstance(trace()[-1], Refused)
    trained(root, Seen(), 5).close()
    with pytest.raises(StateMismatchError, match="K = 4"):
        trained(root, Seen(accumulation_steps=3), 1)
    assert "K = 4" in trace()[-1].why
    assert isinstance(trace()[-1], Unrestored)


def test_own_saves_of_script_count_micro_steps_once(root, trace):
    run = Seen()
    manager = trained(root, run, 1)
    run.train_step()
    manager.save(run).result()
    manager.save_final(run)
    manager.step(run)
    run.train_step()
    manager.save_final(run)
    assert [event.step for event in trace() if isinstance(event, Stepped)] == [1, 2, 3]
    assert [info.progress.batches_delivered for info in manager.checkpoints()] == [2, 3]


def test_a_plan_that_is_none_is_named(tmp_path, root, monkeypatch):
    """A script that is to be examined must never train at its own root."""
    for number, text in enumerate(("{", '{"root": "a", "trace": "b", "stop": 0}', '{"root": "a", "nonsense": 1}')):
        plan = tmp_path / f"{number}.json"
        plan.write_text(text)
        monkeypatch.setenv(*next(iter(variables(plan).items())))
        with pytest.raises(ValueError, match="CKPTKIT_HOOKS"):
            CheckpointManager(root)
    monkeypatch.setenv("CKPTKIT_HOOKS", "no_such_module:argument")
    with pytest.raises(ImportError, match="no_such_module"):
        CheckpointManager(root)
    assert not root.exists()
