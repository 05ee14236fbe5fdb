"""A run, or one checkpoint of it, from a root to another: complete, resumable, and never over something else."""

import contextlib
import itertools
import json
import re
import shutil
from collections.abc import Callable
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
from support.told_watch import ToldWatch

from ckptkit.checkpoint.commit import void
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError, StorageError
from ckptkit.format.events import MAX_SEGMENT_BYTES
from ckptkit.format.layout import CheckpointName
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import DIVISIBLE, EVERY, MUTATING, Fault, FaultyStorage, Killed
from ckptkit.tools.copy.copy import Copied, CopyRequest, copy_run

AT_4 = name_at(1, 4)
WEIGHTS = "rank-00000/weights-000.safetensors"
POSSIBLE = {"before": EVERY, "during": DIVISIBLE, "after": MUTATING}  # after any other call is before the next one


def copy(source, target, checkpoint: str | None = None, watch: ToldWatch | None = None) -> Copied:
    tokens = (f"{number:032x}" for number in itertools.count(1))
    request = CopyRequest(checkpoint, lambda: datetime(2026, 1, 2, tzinfo=timezone.utc), lambda: next(tokens))
    as_storages = [LocalStorage(root) if isinstance(root, Path) else root for root in (source, target)]
    return copy_run(*as_storages, request, watch or ToldWatch())


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
    """The same command again writes nothing; it asks for each document again, since it may not be durable."""
    told = ToldWatch()
    first = copy(source, target, watch=told)
    assert without_run(target) == files_of_copy(source)
    assert first.copied == committed(source) == committed(target)
    assert {AT_4, AT_6, AT_8, AT_10} <= set(first.copied)
    assert told.ended == [(name, "copied") for name in first.copied]
    assert told.planned[-1] == (len(first.copied), first.copied_bytes)
    assert told.read_bytes == first.copied_bytes
    assert (first.present, first.kept, first.pruned, first.corrupt) == ([], [], [], {})
    run, theirs = (json.loads((root / "run.json").read_bytes()) for root in (target, source))
    assert run["run_id"] == first.run_id != theirs["run_id"]
    origin = {"url": str(source), "run_id": theirs["run_id"], "checkpoint": None, "last_attempt": 2}
    assert run["copied_from"] == origin

    storage, before = FaultyStorage(LocalStorage(target)), tree(target)
    done = copy(source, storage)
    assert (done.copied, done.present, done.run_id) == ([], first.copied, first.run_id)
    assert (done.copied_bytes, done.found_bytes) == (0, first.copied_bytes)
    assert not {call.operation for call in storage.calls} & {"write", "delete"}
    asked = {call.keys[0] for call in storage.calls if call.operation == "create"}
    assert asked == {key for key in before if key.endswith("/COMMIT") or key[:6] not in ("checkp", "frozen")}
    assert tree(target) == before


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


def test_copy_killed_during_update_stays_a_run(tmp_path, source, target):
    copy(source, target)
    life = Life(source, keep=KeepLatest(5))
    life.restore()
    life.saved_at(14)
    for nth in itertools.count(1):
        root = shutil.copytree(target, tmp_path / f"to-{nth}")
        fault = Fault("kill", operations=MUTATING, nth=nth, when="after")
        with contextlib.suppress(Killed):
            copy(source, FaultyStorage(LocalStorage(root), [fault]))
        latest = Life(shutil.copytree(root, tmp_path / f"start-{nth}")).restore().checkpoint
        assert latest in (AT_10, name_at(3, 14)), nth
        copy(source, root)
        assert without_run(root) == files_of_copy(source), nth
        if not fault.fired:
            break
    assert nth > 5


def test_files_of_killed_creates_are_removed_from_copy(source, target):
    left = ".COMMIT.0123456789abcdef.tmp"
    copy(source, target)
    expected = tree(target)
    shutil.rmtree(target / "checkpoints" / AT_10)
    for folder in ("attempts", "events", f"checkpoints/{AT_10}", f"checkpoints/{AT_6}", "."):
        (target / folder).mkdir(exist_ok=True)
        name = left if folder != "." else ".run.json.0123456789abcdef.tmp"
        (target / folder / name).write_bytes(b"{")
    copy(source, target)
    assert tree(target) == expected


def test_a_kept_one_that_is_damaged_is_refused(source, target):
    copy(source, target)
    shutil.rmtree(source / "checkpoints" / AT_6)
    for file, words in (
        (WEIGHTS, f"{AT_6}.*damaged.*weights-000"),
        ("COMMIT", f"{AT_6}/COMMIT is not a valid Commit"),
        ("notes.txt", f"{AT_6}/notes.txt is at "),
    ):
        path = target / "checkpoints" / AT_6 / file
        sound = path.read_bytes() if path.exists() else None
        corrupt(target, AT_6, file) if sound else path.write_text("mine")
        before = tree(target)
        with pytest.raises(ResumeError, match=f"{words}.*Nothing was changed"):
            copy(source, target)
        assert tree(target) == before
        path.write_bytes(sound) if sound else path.unlink()


@pytest.mark.parametrize(
    ("side", "when", "action", "checkpoint"),
    [
        ("source", "before", "error", None),
        ("target", "before", "kill", None),
        ("target", "during", "kill", AT_8),
        ("target", "after", "error", AT_8),
    ],
)
def test_interrupted_copy_is_no_run_and_resumes(tmp_path, source, *, side, when, action, checkpoint):
    failed_starts(source, 1)  # its document, the newest, is not the one that ends the copy
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


def test_start_or_file_made_during_copy_ends_the_copy(source, tmp_path):
    for key in ("run.json", "attempts/000001.json", "events/a000001-0001.jsonl"):
        target = tmp_path / key.partition("/")[0]

        def make(path=target / key) -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"{}")

        to_there = FaultyStorage(LocalStorage(target), [Fault(make, operations={"create"}, key=key)])
        with pytest.raises(ResumeError, match="another process has just"):
            copy(source, to_there)
        assert (target / key).read_bytes() == b"{}"


def rewritten(key: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def rewrite(root: Path) -> None:
        (path,) = root.glob(key)
        path.write_bytes(change(path.read_bytes()))

    return rewrite


def own_run(root: Path) -> None:
    shutil.rmtree(root)
    history(root)


def other_event(root: Path) -> None:
    (root / "events/a000001-0001.jsonl").write_bytes(b"other")
    (root / "attempts/000001.json").unlink()


def voided(root: Path) -> None:
    (root / "checkpoints" / AT_6 / "COMMIT").unlink()
    void(LocalStorage(root), CheckpointName.parse(AT_6), "0" * 32)


STRANGE: dict[str, Callable[[Path], object]] = {
    "notes.txt": lambda root: (root / "notes.txt").write_text("mine"),
    name_at(7, 6): lambda root: shutil.copytree(root / "checkpoints" / AT_6, root / "checkpoints" / name_at(7, 6)),
    "frozen/a000001/": rewritten("frozen/a000001/*", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    f"{AT_8}/rank-00000/weights-000": lambda root: corrupt(root, AT_8),
    f"{AT_8}/manifest.json": rewritten(f"checkpoints/{AT_8}/manifest.json", lambda data: data + b" "),
    "run.json": rewritten("run.json", lambda data: b"{}"),
    "according to its run.json": own_run,
    "attempts/000003.json": lambda root: Life(root).restore(),
    f"{AT_6}/COMMIT": voided,
    "events/a000001-0001.jsonl": other_event,
}


def test_foreign_destination_is_refused_and_stays_unchanged(source, tmp_path):
    copy(source, tmp_path / "whole")
    for number, ((named, change), ended) in enumerate(itertools.product(STRANGE.items(), (True, False))):
        target = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", target)
        change(target)
        if not ended and change is not own_run:
            shutil.rmtree(target / "checkpoints" / AT_10)
        before = tree(target)
        with pytest.raises(ResumeError, match=f"{re.escape(named)}.*Nothing was changed"):
            copy(source, target)
        assert tree(target) == before, (named, ended)
    Life(source).restore()
    Life(tmp_path / "whole").restore()
    with pytest.raises(ResumeError, match=r"attempts/000003\.json.*another job"):
        copy(source, tmp_path / "whole")


def interrupted_before(name: str, source: Path, target: Path) -> Path:
    with pytest.raises(Killed):
        copy(
            source, FaultyStorage(LocalStorage(target), [Fault("kill", operations={"create"}, key=f"*/{name}/COMMIT")])
        )
    return target / "checkpoints" / name / WEIGHTS


def gone_at(source: Path, name: str, operation: str, key: str, nth: int = 1) -> Fault:
    return Fault(lambda: shutil.rmtree(source / "checkpoints" / name), operations={operation}, key=key, nth=nth)


@pytest.mark.parametrize("lost_bytes", [False, True], ids=["new", "partly there"])
def test_checkpoint_pruned_during_copy_is_skipped_and_voided(source, target, lost_bytes):
    """Also where a part of it lies that has lost bytes with the power: it is compared with its source."""
    prune = gone_at(source, AT_6, "read_into", f"*/{AT_6}/*", nth=3)
    if lost_bytes:
        part = interrupted_before(AT_6, source, target)
        part.write_bytes(part.read_bytes()[:50])
        prune = gone_at(source, AT_6, "read_into", f"*/{AT_6}/{WEIGHTS}")
    told = ToldWatch()
    done = copy(FaultyStorage(LocalStorage(source), [prune]), target, watch=told)
    assert (prune.fired, done.pruned) == (1, [AT_6])
    assert lost_bytes or done.copied == committed(source)
    assert committed(source) == committed(target)
    assert [checkpoints for checkpoints, _ in told.planned] == [len(committed(source)) + 1, len(committed(source))]
    assert [key for key in tree(target) if AT_6 in key] == [f"checkpoints/{AT_6}/COMMIT"]
    repeated = copy(source, target)
    assert (repeated.copied, repeated.pruned, repeated.present) == ([], [], committed(source))
    assert Life(target).restore().checkpoint == AT_10


def test_partial_checkpoint_pruned_before_resume_is_emptied(source, target):
    interrupted_before(AT_6, source, target)
    shutil.rmtree(source / "checkpoints" / AT_6)
    with pytest.raises(Killed):  # void, and not emptied yet
        copy(source, FaultyStorage(LocalStorage(target), [Fault("kill", operations={"delete"}, key=f"*/{AT_6}/*")]))
    assert copy(source, target).pruned == []
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


@pytest.mark.parametrize(("side", "ended", "stride"), [("source", False, 2), ("target", True, 5)])
def test_copy_ends_beside_failed_starts_at_any_call(tmp_path, source, side, ended, stride):
    """The source forgets its failed start at any call of a copy, or of its update, which may die there."""
    failed_starts(source, 1)
    if ended:
        copy(source, tmp_path / "ended")
    for nth in itertools.count(1, stride):
        of, to = tmp_path / f"of-{nth}", tmp_path / f"to-{nth}"
        shutil.copytree(source, of)
        if ended:
            shutil.copytree(tmp_path / "ended", to)
        faulty = {"source": FaultyStorage(LocalStorage(of)), "target": FaultyStorage(LocalStorage(to))}

        def go_on(of: Path = of) -> None:
            forgetful(of)
            if ended:
                raise Killed

        fault = faulty[side].inject(Fault(go_on, nth=nth))
        try:
            copy(faulty["source"], faulty["target"])
        except Killed:
            copy(of, to)
        check_ended(to, of)
        if not fault.fired:
            break
    assert nth > 40


def test_document_lost_during_copy_was_kept(source, tmp_path):
    """Its checkpoints were copied before; the source is then listed once more, since it removed one."""
    for number, damage in ((1, Path.unlink), (2, lambda path: path.write_bytes(b"{}"))):
        of, to = tmp_path / f"of-{number}", tmp_path / f"to-{number}"
        shutil.copytree(source, of)
        document = (of / f"attempts/{number:06d}.json").read_bytes()

        def lose(of=of, number=number, damage=damage) -> None:
            damage(of / f"attempts/{number:06d}.json")
            shutil.rmtree(of / "checkpoints" / AT_8)

        done = copy(FaultyStorage(LocalStorage(of), [Fault(lose, operations={"read_into"}, key=f"*/{AT_8}/*")]), to)
        assert (to / f"attempts/{number:06d}.json").read_bytes() == document
        assert (done.pruned, done.copied) == ([AT_8], [AT_4, AT_6, AT_10])
        assert Life(to).restore().checkpoint == AT_10


def test_copy_without_end_is_no_success_nor_source(source, target, tmp_path):
    """The document that is to end it was lost at the source after the copy had begun; till then it is no source."""
    with pytest.raises(Killed):
        copy(source, FaultyStorage(LocalStorage(target), [Fault("kill", operations={"create"}, key=f"*/{AT_8}/*")]))
    with pytest.raises(ResumeError, match=r"has not ended: its last file, attempts/000002\.json"):
        copy(target, tmp_path / "further")
    assert not (tmp_path / "further").exists()
    path = source / "attempts/000002.json"
    document, before = path.read_bytes(), tree(target)
    path.unlink()
    with pytest.raises(ResumeError, match=r"cannot be completed.*000002\.json is missing.*Nothing was changed"):
        copy(source, target)
    assert tree(target) == before
    path.write_bytes(document)
    copy(source, target)
    check_ended(target, source)


def test_source_without_anything_whole_writes_nothing(source, target, tmp_path):
    for checkpoint in (None, "latest"):
        with pytest.raises(CheckpointNotFoundError):
            copy(tmp_path / "nothing", target, checkpoint)
    empty = Fault(lambda: shutil.rmtree(tmp_path / "emptied/checkpoints"), operations={"read"}, key="*/manifest.json")
    shutil.copytree(source, tmp_path / "emptied")
    with pytest.raises(CheckpointNotFoundError, match=f"no committed checkpoint at {tmp_path}/emptied"):
        copy(FaultyStorage(LocalStorage(tmp_path / "emptied"), [empty]), target)
    copy(source, tmp_path / "whole")
    whole = tree(tmp_path / "whole")
    (source / "attempts/000002.json").write_bytes(b"{}")
    with pytest.raises(ResumeError, match=rf"^attempts/000002\.json cannot be read at {source}, (?!.*remove)"):
        copy(source, tmp_path / "whole")  # which has the only whole one
    assert tree(tmp_path / "whole") == whole
    assert set(copy(source, tmp_path / "partly").corrupt) == {AT_8, AT_10}
    assert Life(tmp_path / "partly").restore().checkpoint == AT_6
    for name in committed(source):
        corrupt(source, name, "manifest.json")
    with pytest.raises(CorruptCheckpointError, match="no checkpoint"):
        copy(source, target)
    (source / "attempts/000001.json").write_bytes(b"{}")
    with pytest.raises(CorruptCheckpointError, match=r"no file below attempts/ at .* can be read"):
        copy(source, target)
    assert not target.exists()


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
    with pytest.raises(CheckpointNotFoundError, match="Let the source keep more"):
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
    for key, data in good.items():
        (source / key).write_bytes(data)
    assert copy(source, target).copied == [AT_4, AT_8]
    assert without_run(target) == files_of_copy(source)


def test_copy_of_one_checkpoint_continues_like_source(source, tmp_path):
    for name in (AT_6, AT_8):
        target = tmp_path / name
        done = copy(source, target, name)
        assert (done.checkpoint, done.copied, committed(target), events_at(target)) == (name, [name], [name], {})
        files, own, at = tree(target), int(name[1:7]), batches_of(name)
        documents = attempts(files)
        assert sorted(documents) == [own, own + 1]
        assert files[f"attempts/{own:06d}.json"] == (source / f"attempts/{own:06d}.json").read_bytes()
        assert documents[own + 1]["parent"] == name
        assert documents[own + 1]["token"] not in (documents[own]["token"], done.run_id)
        failed_starts(target, 4)  # forgotten, but not what ends the copy
        assert own + 1 in attempts(tree(target))
        life = Life(target)
        assert life.restore().checkpoint == name
        assert life.run.digest() == digest_at(at)
        assert life.saved_at(at + 4) == name_at(own + 6, at + 4)
        assert digest_of(target, name_at(own + 6, at + 4)) == digest_at(at + 4)
    life = Life(source, keep=KeepLatest(9))
    life.restore()
    for wanted, batches, then in ("latest", 14, AT_10), ("best:loss:min", 15, name_at(3, 14)):
        broken = FaultyStorage(LocalStorage(tmp_path / wanted), [Fault("kill", operations={"write"}, nth=2)])
        with pytest.raises(Killed):
            copy(source, broken, wanted)
        assert [*life.run.train_until(batches)][-1] == batches
        life.manager.save(life.run, {"loss": 1 / batches}).result()
        assert copy(source, tmp_path / wanted, wanted).copied == [then], "what was meant when that copy began"


def test_whole_run_and_single_checkpoint_do_not_mix(source, target, tmp_path):
    copy(source, target, AT_8)
    for checkpoint in (None, AT_10):
        with pytest.raises(ResumeError, match=f"a copy of something else.*{AT_8}"):
            copy(source, target, checkpoint)
    copy(source, tmp_path / "whole")
    with pytest.raises(ResumeError, match="the whole run"):
        copy(source, tmp_path / "whole", AT_8)
    (target / "events").mkdir()
    shutil.move(source / "events/a000001-0001.jsonl", target / "events")
    with pytest.raises(ResumeError, match=r"events/a000001-0001\.jsonl"):
        copy(source, target, AT_8)
    (source / "run.json").unlink()  # its URL is all that tells such a source from another one
    bare = tmp_path / "bare"
    copy(source, bare, AT_6)
    with pytest.raises(ResumeError, match=f"a copy of something else.* of {source}"):
        copy(shutil.copytree(source, tmp_path / "other"), bare, AT_6)


def test_missing_or_corrupt_checkpoint_writes_nothing(source, target, monkeypatch):
    corrupt(source, AT_10, "manifest.json")
    with pytest.raises(CorruptCheckpointError, match=AT_10):
        copy(source, target, AT_10)
    for name in (name_at(1, 2), name_at(2, 12), "nonsense"):
        with pytest.raises(CheckpointNotFoundError, match=name):
            copy(source, target, name)
    monkeypatch.setattr("ckptkit.tools.copy.copy.MAX_ATTEMPT", 2)  # the copy would need the next number
    with pytest.raises(ResumeError, match=f"{AT_8} belongs to the last attempt .*; copy the whole run"):
        copy(source, target, AT_8)
    assert not target.exists()
    prune = gone_at(source, AT_6, "read_into", f"*/{AT_6}/*")  # one that goes meanwhile
    for of, said in ((FaultyStorage(LocalStorage(source), [prune]), AT_6), (source, "copy another .* to another root")):
        with pytest.raises(CheckpointNotFoundError, match=said):
            copy(of, target, AT_6)


def events_at(root: Path) -> dict[str, bytes]:
    return {key: data for key, data in tree(root).items() if key.startswith("events/")}


def test_events_are_copied_and_updated(source, target):
    """Damaged ones arrive as they are: the report names them, and a copy of the checkpoints must not fail for them."""
    (source / "events/a000001-0002.jsonl").write_bytes(b"\x00")
    copy(source, target)
    before = events_at(target)
    assert before == events_at(source) != {}
    life = Life(source)
    life.restore()
    life.saved_at(12)
    with (source / "events/a000001-0099.jsonl").open("wb") as file:
        file.truncate(MAX_SEGMENT_BYTES + 1)  # no event file can be as large
    copy(source, target)
    assert events_at(target).keys() - before.keys() == {"events/a000003-0001.jsonl"}
    (source / "events/a000001-0099.jsonl").write_bytes(bytes(MAX_SEGMENT_BYTES))
    copy(source, target)
    assert events_at(target) == events_at(source)
