"""What the seconds of real processes went to, killed by SIGKILL, ended without a word, or by an exception."""

import json
import signal
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.process import Ended, python, run_python

from ckptkit.storage import LocalStorage
from ckptkit.tools.report.health import judge
from ckptkit.tools.report.history import RunStory, read_story

SCRIPT = """
import json, os, signal, sys, threading, time
from datetime import datetime, timedelta, timezone
import ckptkit as ck
from ckptkit.testing.state import NumpyRun

root, until, kill, wrong_by, end = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
clock = lambda: datetime.now(timezone.utc) + timedelta(hours=wrong_by)
pause = threading.Event()
pause.wait(0.3)
run = NumpyRun()
manager = ck.CheckpointManager(
    root, save=ck.SaveEvery(optimizer_steps=5), saving=ck.Saving(when_busy="wait"), system=ck.System(clock=clock)
)
manager.restore(run)
for batches in run.train_until(until):
    pause.wait(0.01)
    manager.step(run)
    if batches == kill:
        exec(end)
if end == "pass":
    manager.save_final(run)
    manager.close()
print(json.dumps(time.monotonic()))
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def live(root: Path, until: int, *, kill: int = 0, wrong_by: int = 0, end: str = "pass") -> Ended:
    script = root.with_name("life.py")
    script.write_text(SCRIPT)
    arguments = (str(script), str(root), *map(str, (until, kill, wrong_by)), end)
    return run_python(*arguments, folder=root.parent, environment={}, timeout=60)


def story_of(root: Path) -> RunStory:
    return read_story(LocalStorage(root), datetime(2036, 1, 1, tzinfo=timezone.utc))


def test_classes_of_killed_lives_add_up_to_wall_time(tmp_path):
    """The clock of the day is hours off in some of them; what was lost after the last event is not seen."""
    root, folder = tmp_path / "work" / "run", tmp_path / "work"
    folder.mkdir()
    live(tmp_path / "work" / "warm", 1).expect(0)
    begun = time.monotonic()
    for kill, wrong_by in ((70, 0), (130, 7), (190, -30)):
        live(root, 1000, kill=kill, wrong_by=wrong_by, end=KILL).expect(-signal.SIGKILL)
    done = live(root, 260)
    wall = json.loads(done.expect(0).stdout) - begun
    account = story_of(root).account
    assert account.seconds == pytest.approx(wall, rel=0.01, abs=0.15)
    assert sum(account.totals.values()) == pytest.approx(account.seconds)
    assert not account.is_rough
    assert account.is_lower_bound
    assert [life.how for life in account.lives] == [None, None, None, "finished"]
    # 260 micro-steps of 10 ms and more counted; each life slept 0.3 s before its restore.
    assert account.totals["trained"] + account.totals["starting"] - 4 * 0.3 > 2.4
    assert all(life.phases["starting"] >= 0.3 for life in account.lives)
    # 10 micro-steps after each last save, whose event may come some of them late.
    assert account.totals["unseen"] >= 3 * 5 * 0.01


ENDS = [
    ("manager.wait(); sys.exit(3)", 3, "exited", "The program of the last attempt ended without"),
    ("raise RuntimeError('no memory')", 1, "failed", "The last attempt failed."),
    ("os.kill(os.getpid(), signal.SIGINT); pause.wait(9)", -signal.SIGINT, "interrupted", "Ctrl-C ended the last"),
    ("os._exit(4)", 4, None, "The last attempt did not record its end: it is running, or it was killed."),
    ("globals().pop('manager'); sys.exit()", 0, "exited", "The program of the last attempt ended without"),
]


def test_a_loop_without_close_tells_its_end(tmp_path):
    for number, (end, returncode, how, headline) in enumerate(ENDS):
        root = tmp_path / f"{number}" / "run"
        root.parent.mkdir()
        live(root, 1000, kill=45, end=end).expect(returncode)
        story = story_of(root)
        assert story.last.how == how, end
        verdict = judge(story)
        assert verdict.headline.startswith(headline), end
        if how == "exited":
            assert verdict.bad == ["What the last attempt did after step 10 is not saved: end with save_final()."]


def test_watched_lives_are_known_to_their_deaths(tmp_path):
    """Under `ckptkit run`, nothing is "not seen": what a killed life did after its last commit was done again."""
    root, script = tmp_path / "run", tmp_path / "life.py"
    script.write_text(SCRIPT)
    once = f"{KILL} if len(os.listdir(root + '/attempts')) < 3 else None"  # the first two lives die, in different steps
    kill = "70 + 60 * (len(os.listdir(root + '/attempts')) - 1)"
    script.write_text(SCRIPT.replace("if batches == kill:", f"if batches == {kill}:"))
    python("-m", "ckptkit", "run", "--", sys.executable, str(script), str(root), "260", "1", "0", once, timeout=60)
    story = story_of(root)
    account, lives = story.account, [life.watched[0] for life in story.lives]
    wall = datetime.fromisoformat(lives[-1].at) - datetime.fromisoformat(lives[0].began_at)
    assert [life.how for life in account.lives] == ["killed", "killed", "finished"]
    assert all(life.watched is not None for life in account.lives)
    assert account.totals["unseen"] == 0
    assert account.totals["repeated"] >= 2 * 10 * 0.01
    assert not account.is_lower_bound
    assert not account.is_rough
    assert sum(account.totals.values()) == pytest.approx(account.seconds)
    assert account.seconds == pytest.approx(wall.total_seconds(), rel=0.01, abs=0.15)
