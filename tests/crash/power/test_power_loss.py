"""What was reported is on the disk when the power goes: also after kills, and after errors that come only once.

Each story (`power_stories`) is told on a recorded disk (`support.disk`): left alone, killed before a call and repeated,
and with an fsync that fails; then the power goes, at moments and with losses that `support.disk.cuts` chooses. That the
suite would see a mistake is shown by mistakes in the log (`power_mutants`).
"""

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from support.disk.cuts import cuts, nothing, some_cuts
from support.disk.model import Cut, DiskTree, lay_out
from support.disk.recorder import CALLS, Disk
from support.runs.scenario import Life, name_at

from ckptkit.errors import CkptKitError
from ckptkit.format.layout import CHECKPOINTS
from ckptkit.storage import local
from ckptkit.testing.faults import Fault, Killed
from crash.lives import started

from .power_mutants import HARMLESS, first_violation, mutants
from .power_stories import (
    Copying,
    Exporting,
    Mirroring,
    Pruning,
    Story,
    Told,
    Training,
    violation,
    whole_run,
)

# How many kills and fsyncs of a story are tried; the extended ones take some minutes of each story.
each = pytest.mark.parametrize("share", [6, pytest.param(30, marks=[pytest.mark.extended, pytest.mark.timeout(1800)])])
NAMES = ["training", "mirroring", "copying", "pruning", "replacing"]
each_other = pytest.mark.parametrize(  # mirroring has most calls, and what training has
    "story", [pytest.param(name, marks=[pytest.mark.extended] * (name == "mirroring")) for name in NAMES], indirect=True
)
FOUND = {"training": 19, "replacing": 2, "mirroring": 33, "copying": 19, "pruning": 1}  # mistakes in its log


@pytest.fixture(scope="module", autouse=True)
def _small():
    """What is large in production is small here: shards that go around the page cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "LARGE_BYTES", 96)  # so that some shards do, and some do not
        yield


@pytest.fixture(scope="module")
def stories(tmp_path_factory) -> dict[str, Story]:
    below = tmp_path_factory.mktemp("stories")
    made = [
        Training(),
        Mirroring(),
        Copying(below / "copying"),
        Pruning(below / "pruning"),
        Exporting(below / "replacing"),
    ]
    return dict(zip(NAMES, made, strict=True))


@pytest.fixture(params=NAMES)
def story(request, stories) -> Story:
    return stories[request.param]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "disk").mkdir()
    return Disk(tmp_path / "disk")


def quiet(story: Story, folder: Path) -> Disk:
    """Two processes one after the other, to which nothing happens."""
    story.begin(folder)
    with Disk(folder) as disk:
        for _ in range(2):
            story.act(disk, folder)
    return disk


def struck(story: Story, folder: Path, fault: Fault) -> tuple[Disk, int]:
    """One of two processes in which ``fault`` happens, and one more after it, which begins where the number says."""
    story.begin(folder)
    with Disk(folder, [fault]) as disk:
        for _ in range(2):
            if not fault.fired:
                with contextlib.suppress(Killed, CkptKitError):
                    story.act(disk, folder)
        assert fault.fired == 1
        disk.restart()
        again = len(disk.log)
        story.act(disk, folder)
    assert disk.log.reported().keys() == story.kinds
    return disk, again


def drawn(of: int, share: int) -> Sequence[int]:
    """Numbers from 1 to ``of``."""
    return sorted(Random(of).sample(range(1, of + 1), min(share, of)))


def hold(story: Story, disk: Disk, chosen: Sequence[Cut], folder: Path, before: Told) -> int:
    """Judge each state that the cuts leave, once; returns how many there were."""
    states: dict[object, tuple[DiskTree, Told, Cut]] = {}
    for cut in chosen:
        left, told = disk.log.after(cut), {**before, **disk.log.reported(cut.moment)}
        states.setdefault((frozenset(left.items()), frozenset(told.items())), (left, told, cut))
    for number, (left, told, cut) in enumerate(states.values()):
        wrong = violation(story, left, told, folder / f"left-{number}")
        assert wrong is None, f"{wrong}\n{disk.log.told(cut)}"
    return len(states)


def at_end(disk: Disk) -> Cut:
    return Cut(len(disk.log), nothing, "nothing kept")


@each
def test_what_was_reported_survives_any_cut(story, share, tmp_path):
    disk = quiet(story, tmp_path / "disk")
    chosen = list(cuts(disk.log, Random(1), many=2))
    chosen = Random(2).sample(chosen, min(10 * share, len(chosen)))
    assert hold(story, disk, chosen, tmp_path, {}) > 8


@each
@each_other
def test_story_killed_anywhere_is_completed_durably(story, share, tmp_path):
    total = len(quiet(story, tmp_path / "quiet").calls)
    for nth in drawn(total, share):
        folder = tmp_path / f"{nth}"
        disk, again = struck(story, folder / "disk", Fault("kill", operations=CALLS, nth=nth))
        later = some_cuts(disk.log, Random(nth), share // 3, since=again)
        hold(story, disk, [at_end(disk), *later], folder, {})


@each
@each_other
def test_failed_fsync_reports_nothing_that_is_lost(story, share, tmp_path):
    """Not even where a second fsync of the same file or folder succeeds, which tells nothing of the first."""
    calls = quiet(story, tmp_path / "quiet").calls
    for nth in drawn(sum(call.operation == "fsync" for call in calls), share):
        folder = tmp_path / f"{nth}"
        disk, again = struck(story, folder / "disk", Fault(no_fsync, operations={"fsync"}, nth=nth))
        first = Cut(again, nothing, "nothing kept, after the failure")
        later = some_cuts(disk.log, Random(nth), share // 10, since=again)
        hold(story, disk, [first, at_end(disk), *later], folder, {})


@each
@each_other
def test_second_cut_loses_nothing_either(story, share, tmp_path):
    first = quiet(story, tmp_path / "first")
    chosen = some_cuts(first.log, Random(3), share // 2)
    for number, cut in enumerate(chosen):
        folder = tmp_path / f"{number}"
        lay_out(first.log.after(cut), folder / "disk")
        with Disk(folder / "disk") as disk:
            story.act(disk, folder / "disk")
        later = some_cuts(disk.log, Random(number), share // 2)
        hold(story, disk, [at_end(disk), *later], folder, first.log.reported(cut.moment))


def no_fsync() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(
    "name", [*list(FOUND)[:2], *(pytest.param(name, marks=pytest.mark.extended) for name in list(FOUND)[2:])]
)
def test_each_missing_fsync_would_be_found(stories, name, tmp_path):
    """A kind of fsync that nothing depends on is known as such."""
    made = mutants(quiet(stories[name], tmp_path / "disk").log)
    harmless = HARMLESS.get(name, {}).keys()
    assert harmless - made.keys() == set()
    assert len(made.keys() - harmless) == FOUND[name]
    for number, what in enumerate(sorted(made.keys() - harmless)):
        assert first_violation(stories[name], made[what], tmp_path / f"{number}") is not None, what


def test_failed_removal_brings_no_torn_checkpoint_back(disk, tmp_path):
    """The frozen shards of an attempt go only where none of its COMMITs can be back after a power loss."""
    root = tmp_path / "disk/run"
    with disk:
        for batches in (2, 4), (6, 8):
            life = Life(root)
            life.restore()
            failing = Fault(no_fsync, operations={"fsync"}, key=f"run/{CHECKPOINTS}/{name_at(1, 2)}")
            if batches == (6, 8):
                disk.inject(failing)
            for at in batches:
                life.saved_at(at)
    assert failing.fired == 1
    assert list((root / "frozen/a000001").glob("*")) == []
    whole_run(lay_out(disk.after_cut(), tmp_path / "left") / "run", 8)


def test_start_makes_durable_what_it_goes_on_from(tmp_path):
    """A COMMIT may have its name and not be on the disk: a cut would take the parent of the start's attempt away."""
    for earlier in ((), (2,)):
        root = tmp_path / f"{len(earlier)}/disk/run"
        root.parent.mkdir(parents=True)
        last_fsync = Fault("kill", operations={"fsync"}, key=f"run/{CHECKPOINTS}/{name_at(1, 4)}", nth=4)
        with Disk(root.parent) as disk:
            life = started(root, *earlier)
            disk.inject(last_fsync)
            with contextlib.suppress(Killed):
                life.save_at(4)
            assert last_fsync.fired == 1
            assert [path.name for path in (root / CHECKPOINTS / name_at(1, 4)).glob("*COMMIT*")] == ["COMMIT"]
            disk.restart()
            death = len(disk.log)
            life = started(root)
        assert life.run.batches == 4
        for moment in range(death, len(disk.log) + 1):
            left = disk.log.after(Cut(moment, nothing, "nothing kept"))
            least = 4 if "run/attempts/000002.json" in left else sum(earlier)
            whole_run(lay_out(left, root.parents[1] / f"left-{moment}") / "run", least)
