"""A run, or one checkpoint of it, from a root to another: complete, resumable, and never over something else."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.runs.scenario import (
    AT_6,
    AT_8,
    AT_10,
    Life,
    attempts,
    batches_of,
    committed,
    corrupt,
    digest_at,
    digest_of,
    history,
    name_at,
    tree,
)

from ckptkit.checkpoint.commit import void
from ckptkit.errors import CheckpointNotFoundError, CkptKitError, CorruptCheckpointError, ResumeError, StorageError
from ckptkit.format.events import MAX_SEGMENT_BYTES
from ckptkit.format.layout import CheckpointName
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.scrubber import clean_url
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import DIVISIBLE, EVERY, MUTATING, Fault, FaultyStorage, Killed
from ckptkit.tools.copy.copy import Copied, CopyRequest, copy_run

AT_4 = name_at(1, 4)
WEIGHTS = "rank-00000/weights-000.safetensors"
POSSIBLE = {"before": EVERY, "during": DIVISIBLE, "after": MUTATING}  # after any other call is before the next one


class Told:
    """A watch that keeps what it was told."""

    def __init__(self) -> None:
        self.planned: list[tuple[int, int]] = []
        self.done_bytes = 0
        self.ended: list[tuple[str, str]] = []

    def plan(self, checkpoints: int, size_bytes: int) -> None:
        self.planned.append((checkpoints, size_bytes))

    def advance(self, size_bytes: int) -> None:
        self.done_bytes += size_bytes

    def end(self, name: str, outcome: str) -> None:
        self.ended.append((name, outcome))


def copy(source, target, checkpoint: str | None = None, watch: Told | None = None) -> Copied:
    tokens = (f"{number:032x}" for number in itertools.count(1))
    request = CopyRequest(checkpoint, lambda: datetime(2026, 1, 2, tzinfo=timezone.utc), lambda: next(tokens))
    as_storages = [LocalStorage(one) if isinstance(one, Path) else one for one in (source, target)]
    return copy_run(*as_storages, request, watch or Told())


def branched(root: Path) -> None:
    """Two attempts, of which the second went on from checkpoint 4: 6 is off the lineage; and a void folder."""
    history(root)
    life = Life(root, keep=KeepLatest(5))
    life.restore(AT_4)
    life.saved_at(8)
    life.saved_at(10)
    LocalStorage(root).create(f"checkpoints/{name_at(2, 12)}/COMMIT", b'{"void_by":"%032d"}' % 0)
    LocalStorage(root).create("lease.json", b"{}")


def files_of_copy(root: Path) -> dict[str, bytes]:
    """What a copy of the run at ``root`` has, by the text of the format, but for run.json."""
    files = tree(root)
    names = committed(root)
    return {
        key: data
        for key, data in files.items()
        if key not in ("run.json", "lease.json") and (not key.startswith("checkpoints/") or key.split("/")[1] in names)
    }


def without_run(root: Path) -> dict[str, bytes]:
    files = tree(root)
    files.pop("run.json")
    return files


@pytest.fixture
def source(tmp_path: Path) -> Path:
    branched(tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def test_whole_copy_includes_branches_but_no_voids(source, target):
    """A whole run arrives with the checkpoints off the lineage, and without void markers."""
    told = Told()
    done = copy(source, target, watch=told)
    assert without_run(target) == files_of_copy(source)
    assert done.copied == committed(source) == committed(target)
    assert {AT_4, AT_6, AT_8, AT_10} <= set(done.copied)
    assert told.ended == [(name, "copied") for name in done.copied]
    assert told.planned[-1] == (len(done.copied), done.copied_bytes)
    assert told.done_bytes == done.copied_bytes
    assert (done.present, done.kept, done.pruned, done.corrupt) == ([], [], [], {})


def test_run_json_says_where_it_came_from(source, target):
    done = copy(source, target)
    run = json.loads((target / "run.json").read_bytes())
    theirs = json.loads((source / "run.json").read_bytes())
    assert run["run_id"] == done.run_id != theirs["run_id"]
    assert run["copied_from"] == {
        "url": str(source),
        "run_id": theirs["run_id"],
        "checkpoint": None,
        "last_attempt": 2,
    }


def test_source_need_not_be_valid_unicode(source, target):
    """Such as a folder of an old system, named in Latin-1; the copy records where it came from."""
    odd = source.with_name(os.fsdecode(b"caf\xe9"))
    source.rename(odd)
    assert copy(odd, target).copied
    document = json.loads((target / "run.json").read_bytes())
    assert document["copied_from"]["url"].endswith("/caf\\udce9")
    assert not copy(odd, target).copied


def test_manager_continues_on_copy_as_on_source(source, target):
    copy(source, target)
    for root in (source, target):
        life = Life(root)
        point = life.restore()
        assert point.checkpoint == AT_10
        assert life.run.digest() == digest_at(10)
        assert life.saved_at(13) == name_at(3, 13)
        assert digest_of(root, name_at(3, 13)) == digest_at(13)
        assert Life(root).restore().checkpoint == name_at(3, 13)


def test_same_command_again_compares_and_vouches(source, target):
    """Nothing is written, and each document that was found is asked for again, since it may not be durable."""
    first = copy(source, target)
    storage = FaultyStorage(LocalStorage(target))
    told, before = Told(), tree(target)
    again = copy(source, storage, watch=told)
    assert again.copied == []
    assert again.present == first.copied
    assert (again.run_id, again.copied_bytes, again.found_bytes) == (first.run_id, 0, first.copied_bytes)
    assert told.done_bytes == told.planned[-1][1]
    assert not {call.operation for call in storage.calls} & {"write", "delete"}
    asked = {call.keys[0] for call in storage.calls if call.operation == "create"}
    assert asked == {
        key for key in before if key.endswith("/COMMIT") or not key.startswith(("checkpoints/", "frozen/"))
    }
    assert tree(target) == before


def test_repeated_copy_adds_new_checkpoints_of_source(source, target):
    copy(source, target)
    life = Life(source, keep=KeepLatest(5))
    life.restore()
    life.saved_at(14)
    storage, before = FaultyStorage(LocalStorage(target)), tree(target)
    done = copy(source, storage)
    assert done.copied == [name_at(3, 14)]
    changes = [call.keys[0] for call in storage.calls if call.operation in ("write", "create")]
    changes = [key for key in changes if key not in before]
    assert changes[0] == "attempts/000003.json"  # as in any run, and so that a job started there meanwhile is noticed
    assert without_run(target) == files_of_copy(source)
    assert Life(target).restore().checkpoint == name_at(3, 14)


@pytest.mark.parametrize(
    "when", ["after", *(pytest.param(when, marks=pytest.mark.extended) for when in ("before", "during"))]
)
def test_copy_killed_during_update_stays_a_run(tmp_path, source, target, when):
    """After a kill at any call, a start on the copy works, and the same command completes it."""
    copy(source, target)
    life = Life(source, keep=KeepLatest(5))
    life.restore()
    life.saved_at(14)
    life = Life(source, keep=KeepLatest(5))
    life.restore(AT_8)
    life.saved_at(11)
    shutil.copytree(target, tmp_path / "whole")
    whole = FaultyStorage(LocalStorage(tmp_path / "whole"))
    copy(source, whole)
    expected = tree(tmp_path / "whole")
    assert without_run(tmp_path / "whole") == files_of_copy(source)
    struck = 0
    for nth in itertools.count(1):
        root = tmp_path / f"to-{nth}"
        shutil.copytree(target, root)
        storage = FaultyStorage(LocalStorage(root))
        fault = storage.inject(Fault("kill", operations=POSSIBLE[when], nth=nth, when=when))
        try:
            copy(source, storage)
        except Killed:
            struck += 1
        assert fault.fired == (nth == struck)
        shutil.copytree(root, tmp_path / f"start-{nth}")
        life = Life(tmp_path / f"start-{nth}")
        assert life.restore().checkpoint in (AT_8, AT_10, name_at(3, 14), name_at(4, 11))
        copy(source, root)
        assert tree(root) == expected
        if not fault.fired:
            break
    assert struck > 10


def test_files_of_killed_creates_are_removed_from_copy(source, target):
    """Temporary files of killed creates are removed, and are not refused as foreign files."""
    left = ".COMMIT.0123456789abcdef.tmp"
    copy(source, target)
    expected = tree(target)
    shutil.rmtree(target / "checkpoints" / AT_10)
    for folder in ("attempts", f"checkpoints/{AT_10}", f"checkpoints/{AT_6}", "."):
        (target / folder).mkdir(exist_ok=True)
        name = left if folder != "." else ".run.json.0123456789abcdef.tmp"
        (target / folder / name).write_bytes(b"{")
    copy(source, target)
    assert tree(target) == expected


def test_checkpoints_pruned_from_source_stay_and_are_named(source, target):
    copy(source, target)
    life = Life(source, keep=KeepLatest(2))
    life.restore()
    for batches in (14, 15, 16):
        life.saved_at(batches)
    assert AT_10 not in committed(source)
    done = copy(source, target)
    assert {AT_8, AT_10} <= set(done.kept)
    assert set(committed(target)) == {*done.kept, *committed(source)}
    assert Life(target).restore().checkpoint == name_at(3, 16)


@pytest.mark.parametrize(
    ("file", "words"), [(WEIGHTS, f"{AT_6}.*damaged.*weights-000"), ("COMMIT", f"{AT_6}/COMMIT is not a valid Commit")]
)
def test_a_kept_one_that_is_damaged_is_refused(source, target, file, words):
    copy(source, target)
    shutil.rmtree(source / "checkpoints" / AT_6)
    corrupt(target, AT_6, file)
    before = tree(target)
    with pytest.raises(ResumeError, match=f"{words}.*Nothing was changed"):
        copy(source, target)
    assert tree(target) == before


def test_a_kept_one_with_other_files_is_refused(source, target):
    copy(source, target)
    shutil.rmtree(source / "checkpoints" / AT_6)
    (target / "checkpoints" / AT_6 / "notes.txt").write_text("mine")
    before = tree(target)
    with pytest.raises(ResumeError, match=f"{AT_6}/notes.txt is at .*Nothing was changed"):
        copy(source, target)
    assert tree(target) == before


@pytest.mark.covering(1)
@pytest.mark.parametrize("checkpoint", [None, AT_8], ids=["whole", "alone"])
@pytest.mark.parametrize("action", ["error", "kill"])
@pytest.mark.parametrize(("side", "when"), [("source", "before"), *(("target", when) for when in POSSIBLE)])
def test_interrupted_copy_is_no_run_and_resumes(tmp_path, source, *, side, when, action, checkpoint):
    """After a fault at any call, a start does not take the partial copy, and the same command completes it."""
    whole = {"source": FaultyStorage(LocalStorage(source)), "target": FaultyStorage(LocalStorage(tmp_path / "whole"))}
    copy(whole["source"], whole["target"], checkpoint)
    expected = tree(tmp_path / "whole")
    calls = [call for call in whole[side].calls if call.operation in POSSIBLE[when]]
    for nth, call in enumerate(calls, start=1):
        root = tmp_path / f"to-{nth}"
        faulty = {"source": FaultyStorage(LocalStorage(source)), "target": FaultyStorage(LocalStorage(root))}
        fault = faulty[side].inject(Fault(action, operations=POSSIBLE[when], nth=nth, when=when))
        try:
            copy(faulty["source"], faulty["target"], checkpoint)
        except (StorageError, Killed):
            pass
        else:
            assert call.operation == "create", call  # only of creates a lost reply is settled
        assert fault.fired, call
        left = tree(root)
        if left and left != expected:
            with pytest.raises(ResumeError, match=r"has not ended.*ckptkit copy"):
                Life(root).restore()
            assert tree(root) == left, call
        copy(source, root, checkpoint)
        assert tree(root) == expected, call
        shutil.rmtree(root)
    assert len(calls) >= (5 if checkpoint else 20)


def test_start_refuses_copy_without_checkpoints(source, target):
    """A start does not take a copy that has no checkpoint yet for a new run."""
    storage = FaultyStorage(LocalStorage(target))
    storage.inject(Fault("kill", operations={"write"}))
    with pytest.raises(Killed):
        copy(source, storage)
    assert list(tree(target)) == ["run.json"]
    with pytest.raises(ResumeError, match=r"has not ended: its last file, attempts/000002\.json"):
        Life(target).restore()
    with pytest.raises(ResumeError, match="has not ended"):
        Life(target).manager.latest()


def test_copy_begun_during_start_ends_the_start(source, target, tmp_path):
    copy(source, tmp_path / "other")

    def begin() -> None:
        target.mkdir()
        shutil.copy(tmp_path / "other" / "run.json", target)

    life = Life(target, faults=[Fault(begin, operations={"create"}, key="run.json")])
    with pytest.raises(ResumeError, match="has not ended"):
        life.restore()
    assert copy(source, target).copied == committed(source)


def test_start_begun_during_copy_ends_the_copy(source, target):
    to_there = FaultyStorage(LocalStorage(target))
    to_there.inject(Fault(lambda: Life(target).restore(), operations={"create"}, key="run.json"))
    with pytest.raises(ResumeError, match="another process"):
        copy(source, to_there)
    assert Life(target).restore().checkpoint is None
    assert committed(target) == []


@pytest.mark.parametrize("key", ["attempts/000001.json", "events/a000001-0001.jsonl"])
def test_file_made_during_copy_ends_the_copy(source, target, key):
    def make() -> None:
        (target / key).parent.mkdir(exist_ok=True)
        (target / key).write_bytes(b"{}")

    to_there = FaultyStorage(LocalStorage(target), [Fault(make, operations={"create"}, key=key)])
    with pytest.raises(ResumeError, match=f"another process has just made {key} at {target}"):
        copy(source, to_there)
    assert (target / key).read_bytes() == b"{}"


def test_unfinished_copy_cannot_be_copied(source, target, tmp_path):
    copy(source, target)
    (target / "attempts/000002.json").unlink()
    with pytest.raises(ResumeError, match="has not ended"):
        copy(target, tmp_path / "further")
    assert not (tmp_path / "further").exists()


def test_a_copy_can_be_copied(source, target, tmp_path):
    copy(source, target)
    copy(target, tmp_path / "further")
    assert without_run(tmp_path / "further") == without_run(target)


def stray_file(root: Path) -> str:
    (root / "notes.txt").write_text("mine")
    return "notes.txt"


def stray_checkpoint(root: Path) -> str:
    shutil.copytree(root / "checkpoints" / AT_6, root / "checkpoints" / name_at(7, 6))
    return name_at(7, 6)


def stray_shard(root: Path) -> str:
    path = root / "checkpoints" / AT_6 / "rank-00003" / "weights-000.safetensors"
    path.parent.mkdir()
    path.write_bytes(b"")
    return "rank-00003"


def stray_frozen(root: Path) -> str:
    (root / "frozen/a000001/mine").write_bytes(b"")
    return "frozen/a000001/mine"


def changed_frozen(root: Path) -> str:
    path = next((root / "frozen/a000001").iterdir())
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return path.name


def changed_shard(root: Path) -> str:
    corrupt(root, AT_8)
    return f"{AT_8}/rank-00000/weights-000"


def changed_manifest(root: Path) -> str:
    path = root / "checkpoints" / AT_8 / "manifest.json"
    path.write_bytes(path.read_bytes() + b" ")
    return f"{AT_8}/manifest.json"


def damaged_run(root: Path) -> str:
    (root / "run.json").write_bytes(b"{}")
    return "run.json"


def own_run(root: Path) -> str:
    shutil.rmtree(root)
    history(root)
    return "run.json"


def later_attempt(root: Path) -> str:
    Life(root).restore()
    return "attempts/000003.json"


def voided(root: Path) -> str:
    (root / "checkpoints" / AT_6 / "COMMIT").unlink()
    void(LocalStorage(root), CheckpointName.parse(AT_6), "0" * 32)
    return f"{AT_6}/COMMIT"


def only_data(root: Path) -> str:
    (root / "run.json").unlink()
    return "attempts/000001.json"


STRANGE = [
    stray_file,
    stray_checkpoint,
    stray_shard,
    stray_frozen,
    changed_frozen,
    changed_shard,
    changed_manifest,
    damaged_run,
    own_run,
    later_attempt,
    voided,
    only_data,
]


@pytest.mark.parametrize("strange", STRANGE, ids=lambda one: one.__name__)
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "half copied"])
def test_foreign_destination_is_refused_and_stays_unchanged(source, target, strange, ended):
    copy(source, target)
    named = strange(target)
    if not ended and strange is not own_run:
        shutil.rmtree(target / "checkpoints" / AT_10)
    before = tree(target)
    with pytest.raises(ResumeError) as caught:
        copy(source, target)
    assert named in str(caught.value)
    assert "Nothing was changed" in str(caught.value)
    assert tree(target) == before


def test_attempts_started_on_both_sides_are_refused(source, target):
    """A job that was started on both the source and the copy is recognised by its attempt."""
    copy(source, target)
    Life(source).restore()
    Life(target).restore()
    with pytest.raises(ResumeError, match=r"attempts/000003\.json.*another job"):
        copy(source, target)


def test_checkpoint_pruned_during_copy_is_skipped_and_voided(source, target):
    from_there = FaultyStorage(LocalStorage(source))
    from_there.inject(
        Fault(lambda: shutil.rmtree(source / "checkpoints" / AT_6), operations={"read_into"}, key=f"*/{AT_6}/*", nth=3)
    )
    told = Told()
    done = copy(from_there, target, watch=told)
    assert done.pruned == [AT_6]
    assert done.copied == committed(source) == committed(target)
    assert [checkpoints for checkpoints, _ in told.planned] == [len(done.copied) + 1, len(done.copied)]
    left = [key for key in tree(target) if AT_6 in key]
    assert left == [f"checkpoints/{AT_6}/COMMIT"]
    again = copy(source, target)
    assert (again.copied, again.pruned, again.present) == ([], [], done.copied)


def test_checkpoint_pruned_before_comparison_is_skipped(source, target):
    others = [name for name in copy(source, target).copied if name != AT_6]
    shutil.rmtree(target / "checkpoints" / AT_6)
    prune = Fault(
        lambda: shutil.rmtree(source / "checkpoints" / AT_6), operations={"read"}, key=f"*/{AT_6}/manifest.json", nth=2
    )
    done = copy(FaultyStorage(LocalStorage(source), [prune]), target)
    assert prune.fired == 1
    assert (done.pruned, done.copied, done.present) == ([AT_6], [], others)
    assert not any(AT_6 in key for key in tree(target))  # nothing was there, so nothing says that it is void


def test_checkpoint_pruned_during_comparison_is_skipped(source, target):
    """Of a part of a file at the target, it is compared with what was its source."""
    part = target / "checkpoints" / AT_6 / WEIGHTS
    with pytest.raises(Killed):
        copy(
            source, FaultyStorage(LocalStorage(target), [Fault("kill", operations={"create"}, key=f"*/{AT_6}/COMMIT")])
        )
    part.write_bytes(part.read_bytes()[:50])
    prune = Fault(
        lambda: shutil.rmtree(source / "checkpoints" / AT_6), operations={"read_into"}, key=f"*/{AT_6}/{WEIGHTS}"
    )
    done = copy(FaultyStorage(LocalStorage(source), [prune]), target)
    assert prune.fired == 1
    assert done.pruned == [AT_6]
    assert [key for key in tree(target) if AT_6 in key] == [f"checkpoints/{AT_6}/COMMIT"]
    assert Life(target).restore().checkpoint == AT_10


def test_source_found_corrupt_during_comparison_does_not_prevent_others(source, target):
    """Its file at the target has lost its bytes with the power, and is compared with the source's."""
    part = target / "checkpoints" / AT_6 / WEIGHTS
    with pytest.raises(Killed):
        copy(
            source, FaultyStorage(LocalStorage(target), [Fault("kill", operations={"create"}, key=f"*/{AT_6}/COMMIT")])
        )
    part.write_bytes(bytes(part.stat().st_size))
    corrupt(source, AT_6)
    done = copy(source, target)
    assert list(done.corrupt) == [AT_6]
    assert committed(target) == [name for name in committed(source) if name != AT_6]


def test_partial_checkpoint_pruned_before_resume_is_emptied(source, target):
    """A partly copied checkpoint that the source removed before the copy resumed is voided and emptied."""
    to_there = FaultyStorage(LocalStorage(target))
    to_there.inject(Fault("kill", operations={"create"}, key=f"*/{AT_6}/COMMIT"))
    with pytest.raises(Killed):
        copy(source, to_there)
    shutil.rmtree(source / "checkpoints" / AT_6)
    with pytest.raises(Killed):  # void, and not emptied yet
        copy(source, FaultyStorage(LocalStorage(target), [Fault("kill", operations={"delete"}, key=f"*/{AT_6}/*")]))
    done = copy(source, target)
    assert done.pruned == []
    assert [key for key in tree(target) if AT_6 in key] == [f"checkpoints/{AT_6}/COMMIT"]
    assert Life(target).restore().checkpoint == AT_10


@pytest.mark.parametrize("when", [{"operations": {"read_into"}}, {"operations": {"read"}, "key": "*/manifest.json"}])
def test_newer_checkpoints_replace_listed_ones_pruned_meanwhile(source, target, when):
    """The source trains on and prunes: without a second look, the copy would hold nothing to start from."""
    planned = committed(source)

    def go_on() -> None:
        life = Life(source, keep=KeepLatest(2))
        life.restore()
        for batches in (14, 15, 16):
            life.saved_at(batches)
        for name in planned:
            shutil.rmtree(source / "checkpoints" / name, ignore_errors=True)

    from_there = FaultyStorage(LocalStorage(source))
    from_there.inject(fault := Fault(go_on, **when))
    to_there = FaultyStorage(LocalStorage(target))
    done = copy(from_there, to_there)
    assert fault.fired == 1
    created = [call.keys[0] for call in to_there.calls if call.operation == "create"]
    assert created[-1] == "attempts/000002.json"  # which run.json named before there was a third
    assert set(done.pruned) == set(planned)
    assert done.copied == [name_at(3, 15), name_at(3, 16)] == committed(target)
    assert Life(target).restore().checkpoint == name_at(3, 16)


def failed_starts(root: Path, times: int) -> None:
    """So many starts that commit nothing, and have events all the same."""
    for _ in range(times):
        life = Life(root, keep=KeepLatest(5))
        life.restore()
        life.manager.close()


def check_ended(root: Path, source: Path, latest: str = AT_10) -> None:
    """The copy at ``root`` has each checkpoint's document and the one that ends it, and a start takes ``latest``."""
    files = tree(root)
    there = attempts(files)
    assert json.loads(files["run.json"])["copied_from"]["last_attempt"] in there
    assert {int(name[1:7]) for name in committed(root)} <= there.keys()
    theirs = tree(source)
    assert {key: data for key, data in files.items() if key != "run.json" and theirs.get(key, data) != data} == {}
    life = Life(root)
    assert life.restore().checkpoint == latest
    assert life.run.digest() == digest_at(batches_of(latest))


def forgetful(root: Path) -> None:
    """A source whose newest start, the third, committed nothing, and that forgets it once it was started thrice more.

    It removes a checkpoint then, too, so that a copy under way looks at it again.
    """
    failed_starts(root, 3)
    shutil.rmtree(root / "checkpoints" / AT_6, ignore_errors=True)
    assert 3 not in attempts(tree(root))


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.extended)], ids=["goes on", "killed"])
@pytest.mark.parametrize("ended", [False, True], ids=["first call", "update"])
@pytest.mark.covering(1)
def test_copy_ends_beside_failed_starts_at_any_call(tmp_path, source, side, killed, ended):
    """The source forgets its failed start at any call of the copy, which may die there and be called once more."""
    failed_starts(source, 1)
    if ended:
        copy(source, tmp_path / "ended")
    for nth in itertools.count(1):
        of, to = tmp_path / f"of-{nth}", tmp_path / f"to-{nth}"
        shutil.copytree(source, of)
        if ended:
            shutil.copytree(tmp_path / "ended", to)
        faulty = {"source": FaultyStorage(LocalStorage(of)), "target": FaultyStorage(LocalStorage(to))}

        def go_on(of: Path = of) -> None:
            forgetful(of)
            if killed:
                raise Killed

        fault = faulty[side].inject(Fault(go_on, nth=nth))
        try:
            copy(faulty["source"], faulty["target"])
        except Killed:
            copy(of, to)
        check_ended(to, of)
        if not fault.fired:
            break
        shutil.rmtree(of)
        shutil.rmtree(to)
    assert nth > 40


def test_resumed_copy_ends_though_source_forgot_start(source, target):
    """Its source was restarted again and again, before and after the copy died."""
    failed_starts(source, 1)
    with pytest.raises(Killed):
        copy(source, FaultyStorage(LocalStorage(target), [Fault("kill", operations={"create"}, key=f"*/{AT_8}/*")]))
    failed_starts(source, 3)
    assert sorted(attempts(tree(source))) == [1, 2, 4, 5, 6]
    done = copy(source, target)
    assert done.present + done.copied == committed(source) == committed(target)
    assert sorted(attempts(tree(target))) == [1, 2, 4, 5, 6]
    check_ended(target, source)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"{}")], ids=["gone", "damaged"])
@pytest.mark.parametrize("number", [1, 2])
def test_document_lost_during_copy_was_kept(source, target, number, damage):
    """Its checkpoints were copied before; the source is then listed once more, since it removed one."""

    def lose() -> None:
        damage(source / f"attempts/{number:06d}.json")
        shutil.rmtree(source / "checkpoints" / AT_8)

    document = (source / f"attempts/{number:06d}.json").read_bytes()
    lost = Fault(lose, operations={"read_into"}, key=f"*/{AT_8}/*")
    done = copy(FaultyStorage(LocalStorage(source), [lost]), target)
    assert done.pruned == [AT_8]
    assert (target / f"attempts/{number:06d}.json").read_bytes() == document
    assert done.copied == [AT_4, AT_6, AT_10] == committed(target)
    life = Life(target)
    assert life.restore().checkpoint == AT_10
    assert life.run.digest() == digest_at(10)


@pytest.mark.parametrize(
    ("damage", "why"),
    [(Path.unlink, "is missing"), (lambda path: path.write_bytes(b"{}"), "is not a valid AttemptDocument")],
    ids=["gone", "damaged"],
)
def test_copy_that_cannot_end_is_no_success(source, target, tmp_path, damage, why):
    """The document that is to end it was lost at the source after the copy had begun."""
    with pytest.raises(Killed):
        copy(source, FaultyStorage(LocalStorage(target), [Fault("kill", operations={"create"}, key=f"*/{AT_8}/*")]))
    path = source / "attempts/000002.json"
    document = path.read_bytes()
    damage(path)
    before = tree(target)
    with pytest.raises(ResumeError, match=rf"cannot be completed.*attempts/000002\.json {why}.*Nothing was changed"):
        copy(source, target)
    assert tree(target) == before
    copy(source, tmp_path / "other")
    assert Life(tmp_path / "other").restore().checkpoint == AT_6
    path.write_bytes(document)
    copy(source, target)
    check_ended(target, source)


def test_document_damaged_at_source_is_named_there(source, target):
    """The copy has the only whole one: its removal must not be the advice."""
    copy(source, target)
    path = source / "attempts/000001.json"
    path.write_bytes(b"{}")
    before = tree(target)
    with pytest.raises(ResumeError) as caught:
        copy(source, target)
    assert str(caught.value).startswith(f"attempts/000001.json cannot be read at {source}, ")
    assert "remove" not in str(caught.value)
    assert tree(target) == before
    shutil.copy(target / "attempts/000001.json", path)
    Life(source).restore()
    copy(source, target)
    check_ended(target, source)


def test_source_that_always_prunes_first_is_an_error(source, target):
    numbers = itertools.count(20)

    def go_on() -> None:
        life = Life(source, keep=KeepLatest(2))
        life.restore()
        life.saved_at(next(numbers))
        for name in committed(source)[:-1]:
            shutil.rmtree(source / "checkpoints" / name)

    from_there = FaultyStorage(LocalStorage(source))
    from_there.inject(Fault(go_on, operations={"read_into"}, times=None))
    with pytest.raises(CheckpointNotFoundError, match="keep="):
        copy(from_there, target)
    with pytest.raises(ResumeError, match="has not ended"):
        Life(target).restore()


def test_corrupt_checkpoint_is_named_and_others_are_copied(source, target):
    good = tree(source)
    corrupt(source, AT_8, "rank-00000/optimizer-000.safetensors")
    corrupt(source, AT_4, "manifest.json", "cut")
    done = copy(source, target)
    assert set(done.corrupt) == {AT_4, AT_8}
    assert "optimizer-000" in done.corrupt[AT_8]
    assert committed(target) == done.copied == [AT_6, AT_10]
    written = {key: len(data) for key, data in tree(target).items() if key.startswith(("checkpoints/", "frozen/"))}
    assert any(AT_8 in key for key in written)  # until the damage was met
    assert done.copied_bytes == sum(size for key, size in written.items() if not key.endswith("/COMMIT"))
    assert Life(target).restore().checkpoint == AT_10
    shutil.rmtree(target)
    copy(source, target)
    for key, data in good.items():
        (source / key).write_bytes(data)
    assert copy(source, target).copied == [AT_4, AT_8]
    assert without_run(target) == files_of_copy(source)


def test_copy_of_only_corrupt_checkpoints_writes_nothing(source, target):
    for name in committed(source):
        corrupt(source, name, "manifest.json")
    with pytest.raises(CorruptCheckpointError, match="no checkpoint"):
        copy(source, target)
    assert not target.exists()


def test_unreadable_attempt_excludes_only_its_checkpoints(source, target):
    (source / "attempts/000002.json").write_bytes(b"{}")
    done = copy(source, target)
    assert set(done.corrupt) == {AT_8, AT_10}
    assert Life(target).restore().checkpoint == AT_6


def test_copy_without_readable_attempts_writes_nothing(source, target):
    for path in (source / "attempts").iterdir():
        path.write_bytes(b"{}")
    with pytest.raises(CorruptCheckpointError, match=r"no file below attempts/ at .* can be read"):
        copy(source, target)
    assert not target.exists()


def test_source_emptied_before_the_copy_writes_nothing(source, target):
    empty = Fault(lambda: shutil.rmtree(source / "checkpoints"), operations={"read"}, key="*/manifest.json")
    with pytest.raises(CheckpointNotFoundError, match=f"no committed checkpoint at {source}"):
        copy(FaultyStorage(LocalStorage(source), [empty]), target)
    assert not target.exists()


def test_checkpoint_of_last_attempt_is_not_copied_alone(source, target, monkeypatch):
    """The copy would need the next number."""
    monkeypatch.setattr("ckptkit.tools.copy.copy.MAX_ATTEMPT", 2)
    with pytest.raises(ResumeError, match=f"{AT_8} belongs to the last attempt .*; copy the whole run"):
        copy(source, target, AT_8)
    assert not target.exists()
    assert copy(source, target).copied == committed(source)


@pytest.mark.parametrize("checkpoint", [None, "latest"])
def test_nothing_to_copy_is_an_error(tmp_path, target, checkpoint):
    with pytest.raises(CheckpointNotFoundError):
        copy(tmp_path / "nothing", target, checkpoint)
    assert list(tmp_path.iterdir()) == []


def test_a_root_is_not_copied_to_itself(source, tmp_path):
    (tmp_path / "link").symlink_to(source)
    for target in (source, tmp_path / "link"):
        with pytest.raises(ValueError, match="itself"):
            copy(source, target)


@pytest.mark.parametrize("name", [AT_4, AT_6, AT_8, AT_10])
def test_copy_of_one_checkpoint_continues_like_source(source, target, name):
    done = copy(source, target, name)
    assert (done.checkpoint, done.copied) == (name, [name])
    files = tree(target)
    own = int(name[1:7])
    documents = attempts(files)
    assert sorted(documents) == [own, own + 1]
    assert files[f"attempts/{own:06d}.json"] == (source / f"attempts/{own:06d}.json").read_bytes()
    assert documents[own + 1]["parent"] == name
    assert documents[own + 1]["token"] not in (documents[own]["token"], done.run_id)
    assert committed(target) == [name]

    life = Life(target)
    assert life.restore().checkpoint == name
    at = batches_of(name)
    assert life.run.digest() == digest_at(at)
    assert attempts(tree(target))[own + 2]["parent"] == name
    for further in (at + 1, at + 4, at + 6):
        life.saved_at(further)
        assert Life(target).manager.latest().name == name_at(own + 2, further)
    later = Life(target)
    later.restore()
    assert later.run.digest() == digest_at(at + 6)
    later.saved_at(at + 7)
    assert digest_of(target, name_at(own + 3, at + 7)) == digest_at(at + 7)


def test_resumed_copy_of_latest_keeps_its_choice(source, target):
    """`latest` is what a start would take; a resumed copy keeps it, though the source went on."""
    to_there = FaultyStorage(LocalStorage(target))
    to_there.inject(Fault("kill", operations={"write"}, nth=2))
    with pytest.raises(Killed):
        copy(source, to_there, "latest")
    life = Life(source, keep=KeepLatest(5))
    life.restore()
    life.saved_at(14)
    assert copy(source, target, "latest").copied == [AT_10]


def test_whole_run_and_single_checkpoint_do_not_mix(source, target, tmp_path):
    copy(source, target, AT_8)
    for checkpoint in (None, AT_10):
        with pytest.raises(ResumeError, match=f"a copy of something else.*{AT_8}"):
            copy(source, target, checkpoint)
    copy(source, tmp_path / "whole")
    with pytest.raises(ResumeError, match="the whole run"):
        copy(source, tmp_path / "whole", AT_8)


@pytest.mark.parametrize("key", [f"checkpoints/{AT_4}", "events/a000001-0001.jsonl"])
def test_anything_else_beside_one_alone_is_refused(source, target, key):
    copy(source, target, AT_6)
    (target / key).parent.mkdir(exist_ok=True)
    shutil.move(source / key, target / key)
    with pytest.raises(ResumeError, match=key):
        copy(source, target, AT_6)


def test_missing_or_corrupt_checkpoint_writes_nothing(source, target):
    """The copy of one checkpoint that is gone, corrupt or unknown is an error, and writes nothing."""
    corrupt(source, AT_8, "manifest.json")
    with pytest.raises(CorruptCheckpointError, match=AT_8):
        copy(source, target, AT_8)
    for name in (name_at(1, 2), name_at(2, 12), "nonsense"):
        with pytest.raises(CheckpointNotFoundError, match=name):
            copy(source, target, name)
    assert not target.exists()


def test_one_that_goes_meanwhile_is_an_error(source, target):
    from_there = FaultyStorage(LocalStorage(source))
    from_there.inject(
        Fault(lambda: shutil.rmtree(source / "checkpoints" / AT_6), operations={"read_into"}, key=f"*/{AT_6}/*")
    )
    with pytest.raises(CheckpointNotFoundError, match=AT_6):
        copy(from_there, target, AT_6)
    with pytest.raises(CheckpointNotFoundError, match="copy another checkpoint to another root"):
        copy(source, target, AT_6)
    with pytest.raises(CkptKitError, match="has not ended"):
        Life(target).restore()


def test_sources_without_id_are_distinguished_by_url(source, target, tmp_path):
    other = tmp_path / "other"
    history(other)
    for root in (source, other):
        (root / "run.json").unlink()
    copy(source, target, AT_6)
    before = tree(target)
    with pytest.raises(ResumeError, match=f"copy of something else.* of {source}"):
        copy(other, target, AT_6)
    assert tree(target) == before
    assert copy(source, target, AT_6).present == [AT_6]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("/data/runs/a@b?c", "/data/runs/a@b?c"),
        ("s3://bucket/runs/vit", "s3://bucket/runs/vit"),
        ("s3://key:secret@bucket/runs/vit?token=x#y", "s3://bucket/runs/vit"),
        ("http://user:p%40ss@host:9000/b", "http://host:9000/b"),
        ("simplecache::ftp://user:pw@host/x", "simplecache::ftp://host/x"),
        (
            "zip://*.bin?a=b::filecache::https://user:pw@host/x.zip?sig=c::d",
            "zip://*.bin::filecache::https://host/x.zip",
        ),
        ("ftp://user:p::w@[fe80::1]:21/a::b", "ftp://[fe80::1]:21/a::b"),
        ("memory:///runs/a", "memory:///runs/a"),
        ("user@host::/data", "user@host::/data"),
    ],
)
def test_no_credentials_are_written_down(url, told):
    assert clean_url(url) == told


# Events


def events_at(root: Path) -> dict[str, bytes]:
    return {key: data for key, data in tree(root).items() if key.startswith("events/")}


def test_events_are_copied_and_updated(tmp_path):
    history(tmp_path / "here")
    copy(tmp_path / "here", tmp_path / "there")
    before = events_at(tmp_path / "there")
    assert before == events_at(tmp_path / "here") != {}
    life = Life(tmp_path / "here")
    life.restore()
    life.saved_at(8)
    copy(tmp_path / "here", tmp_path / "there")
    after = events_at(tmp_path / "there")
    assert after == events_at(tmp_path / "here")
    assert after.keys() - before.keys() == {"events/a000002-0001.jsonl"}


def test_a_checkpoint_alone_has_no_events(tmp_path):
    history(tmp_path / "here")
    copy(tmp_path / "here", tmp_path / "there", AT_6)
    assert events_at(tmp_path / "there") == {}


@pytest.mark.parametrize("key", ["events/a000001-0001.jsonl", "events/a000001-0099.jsonl", "events/notes.txt"])
def test_foreign_events_are_named_and_nothing_is_written(tmp_path, key):
    history(tmp_path / "here")
    copy(tmp_path / "here", tmp_path / "there")
    (tmp_path / "there" / key).write_bytes(b"other")
    (tmp_path / "there" / "attempts/000001.json").unlink()
    before = tree(tmp_path / "there")
    with pytest.raises(ResumeError, match=key):
        copy(tmp_path / "here", tmp_path / "there")
    assert tree(tmp_path / "there") == before


def test_damaged_events_arrive_as_they_are(tmp_path):
    """The report names them; a copy of the checkpoints must not fail for them."""
    history(tmp_path / "here")
    (tmp_path / "here/events/a000001-0002.jsonl").write_bytes(b"\x00")
    copy(tmp_path / "here", tmp_path / "there")
    assert events_at(tmp_path / "there") == events_at(tmp_path / "here")


def test_events_of_impossible_size_stay_behind(tmp_path):
    history(tmp_path / "here")
    sound = events_at(tmp_path / "here")
    with (tmp_path / "here/events/a000001-0099.jsonl").open("wb") as file:
        file.truncate(MAX_SEGMENT_BYTES + 1)
    for _ in range(2):
        copy(tmp_path / "here", tmp_path / "there")
        assert events_at(tmp_path / "there") == sound
    (tmp_path / "here/events/a000001-0099.jsonl").write_bytes(bytes(MAX_SEGMENT_BYTES))  # a possible one
    copy(tmp_path / "here", tmp_path / "there")
    assert events_at(tmp_path / "there") == events_at(tmp_path / "here")
