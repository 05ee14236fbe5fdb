"""One checkpoint from a storage to another: whole, in order, proven, resumable, and never over something else."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import pytest
from support.runs.dict_storage import DictStorage
from support.runs.scenario import AT_6, Tree, corrupt, history, name_at, tree

from ckptkit.checkpoint.commit import void
from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.transfer import Transfer, files_of
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError, StaleAttemptError, StorageError
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.index import Index
from ckptkit.storage import LocalStorage
from ckptkit.storage.direct import ALIGNMENT_BYTES
from ckptkit.testing.faults import DIVISIBLE, EVERY, MUTATING, Fault, FaultyStorage, Killed
from ckptkit.testing.state import NumpyRun

NAME = CheckpointName.parse(AT_6)
WEIGHTS = f"checkpoints/{AT_6}/rank-00000/weights-000.safetensors"


@pytest.fixture
def source(tmp_path: Path) -> FaultyStorage:
    history(tmp_path / "source")
    return FaultyStorage(LocalStorage(tmp_path / "source"))


@pytest.fixture
def target(tmp_path: Path) -> FaultyStorage:
    return FaultyStorage(LocalStorage(tmp_path / "target"))


def opened(source):
    return open_checkpoint(source, NAME, Index(source).document(1))


class Transferred(NamedTuple):
    outcome: str
    copied_bytes: int = 0
    found_bytes: int = 0


def transfer_checkpoint(source, target, documents, report=None) -> Transferred:
    """Take both steps at once."""
    one = Transfer(source, target, documents)
    try:
        one.compare(report)
        return Transferred(one.finish(report), one.copied_bytes, one.found_bytes)
    except CheckpointNotFoundError:
        return Transferred("pruned", one.copied_bytes, one.found_bytes)


def transfer(source, target, report=None) -> Transferred:
    return transfer_checkpoint(source, target, opened(source), report)


def expected_of(root: str) -> Tree:
    """The files of the checkpoint, and the frozen ones of its attempt."""
    files = tree(Path(root))
    return {key: data for key, data in files.items() if key.startswith((f"checkpoints/{AT_6}/", "frozen/"))}


def lies_at(storage) -> Tree:
    return {key: data for key, data in tree(Path(storage.url)).items() if not key.endswith(".tmp")}


def test_transfer_writes_every_byte_in_protocol_order(source, target):
    told: list[int] = []
    done = transfer(source, target, told.append)
    expected = expected_of(source.url)
    assert lies_at(target) == expected
    commit = f"checkpoints/{AT_6}/COMMIT"
    size = sum(len(data) for key, data in expected.items() if key != commit)
    assert done == Transferred("copied", copied_bytes=size)
    assert sum(told) == size
    changes = [call for call in target.calls if call.operation in ("write", "create", "delete")]
    kinds = [
        "frozen" if key.startswith("frozen/") else key.removeprefix(f"checkpoints/{AT_6}/").partition("/")[0]
        for key in (call.keys[0] for call in changes)
    ]
    shards = kinds.index("frozen")
    assert shards >= 3
    assert kinds == ["rank-00000"] * shards + ["frozen", "rank-00000.json", "manifest.json", "COMMIT"]
    assert changes[-1].operation == "create"


def test_second_call_proves_files_and_vouches_for_commit(source, target):
    """It writes nothing; and COMMIT, which may have been seen before its folder was fsynced, is asked for again."""
    size = transfer(source, target).copied_bytes
    before, left = len(target.calls), lies_at(target)
    assert transfer(source, target) == Transferred("present", found_bytes=size)
    changes = [call for call in target.calls[before:] if call.operation in MUTATING]
    assert changes == [("create", (f"checkpoints/{AT_6}/COMMIT",))]
    assert lies_at(target) == left


def test_found_file_without_commit_is_written_anew(source, target):
    """Its bytes are right, and whoever wrote them may have died before the fsync."""
    transfer(source, target)
    Path(target.url, f"checkpoints/{AT_6}/COMMIT").unlink()
    expected = sum(len(data) for key, data in lies_at(target).items())
    assert transfer(source, target) == Transferred("copied", copied_bytes=expected)
    assert lies_at(target) == expected_of(source.url)


def test_found_file_in_object_store_counts(source):
    """What can be seen there stays."""
    target = DictStorage()
    size = transfer(source, target).copied_bytes
    target.delete([f"checkpoints/{AT_6}/COMMIT"])
    assert transfer(source, target) == Transferred("copied", found_bytes=size)


def frozen_of(source) -> str:
    return next(file.key for file in files_of(opened(source)) if file.key.startswith("frozen/"))


@pytest.mark.parametrize("left", [None, b"", b"\0"], ids=["gone", "empty", "torn"])
def test_proven_file_that_is_gone_is_written_again(source, target, left):
    """It was there once; somebody has removed or cut it since."""
    key = frozen_of(source)
    if left is not None:
        Path(target.url, key).parent.mkdir(parents=True)
        Path(target.url, key).write_bytes(left)
    proven = {key}
    moving = Transfer(source, target, opened(source), proven)
    moving.compare()
    assert proven == set()
    assert moving.finish() == "copied"
    assert key in proven
    assert lies_at(target) == expected_of(source.url)


def test_proven_files_cost_two_listings(source, target):
    transfer(source, target)
    before = len(target.calls)
    Transfer(source, target, opened(source), {file.key for file in files_of(opened(source))}).compare()
    asked = [(call.operation, call.keys) for call in target.calls[before:] if call.keys != (NAME.commit_key,)]
    assert asked == [("walk", (f"checkpoints/{AT_6}/",)), ("list", ("frozen/a000001",))]


@pytest.mark.parametrize("readable", [True, False], ids=["readable", "unreadable"])
@pytest.mark.parametrize("how", ["whole", "flip", "cut"])
def test_frozen_shard_of_another_commit_is_never_removed(source, target, how, readable):
    transfer(source, target)
    if not readable:
        corrupt(Path(target.url), AT_6, "manifest.json")
    (frozen,) = (key for key in lies_at(target) if key.startswith("frozen/"))
    path = Path(target.url, frozen)
    data = {"whole": lambda data: data, "flip": lambda data: b"\xff" + data[1:], "cut": lambda data: data[:-1]}[how]
    path.write_bytes(data(path.read_bytes()))
    left, before = path.read_bytes(), len(target.calls)
    older = open_checkpoint(source, CheckpointName.parse(name_at(1, 4)), Index(source).document(1))
    if how == "whole":
        assert transfer_checkpoint(source, target, older).found_bytes == len(left)
    else:
        with pytest.raises(ResumeError, match="frozen"):
            transfer_checkpoint(source, target, older)
    assert path.read_bytes() == left
    assert frozen not in [key for call in target.calls[before:] if call.operation in MUTATING for key in call.keys]


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("action", ["error", "kill"])
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_interrupted_at_any_call_the_same_call_resumes(tmp_path, source, side, action, when):
    whole = FaultyStorage(LocalStorage(tmp_path / "whole"))
    documents = opened(source)
    source.calls.clear()
    transfer_checkpoint(source, whole, documents)
    calls = (source if side == "source" else whole).calls
    struck = 0
    for nth, call in enumerate(calls, start=1):
        if when == "during" and call.operation not in DIVISIBLE:
            continue
        faulty = {
            "source": FaultyStorage(LocalStorage(source.url)),
            "target": FaultyStorage(LocalStorage(tmp_path / f"to-{nth}")),
        }
        operations = DIVISIBLE if when == "during" else EVERY
        place = sum(1 for one in calls[:nth] if one.operation in operations)
        fault = faulty[side].inject(Fault(action, operations=operations, nth=place, when=when))
        try:
            transfer_checkpoint(faulty["source"], faulty["target"], documents)
        except (StorageError, Killed):
            pass
        else:
            assert call.keys[0].endswith("COMMIT")  # only of that one a lost reply is settled
        assert fault.fired, call
        struck += 1
        left = lies_at(faulty["target"])
        if f"checkpoints/{AT_6}/COMMIT" in left:
            assert left == lies_at(whole), call
        again = LocalStorage(tmp_path / f"to-{nth}")
        assert transfer(LocalStorage(source.url), again).outcome in ("copied", "present")
        assert lies_at(again) == lies_at(whole), call
    assert struck >= (0 if (side, when) == ("source", "during") else 5)


@pytest.mark.parametrize("file", ["manifest.json", "rank-00000.json", "rank-00000/weights-000.safetensors"])
@pytest.mark.parametrize(
    "left",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:10],
        lambda data: data + bytes(ALIGNMENT_BYTES - 1),  # a direct write that was killed before the cut
        lambda data: data,
        lambda data: data[:10] + bytes(20) + data[30:],  # blocks that had not reached the disk when the power went
        lambda data: bytes(len(data)),
    ],
    ids=["nothing", "all but one", "ten", "padded", "all", "a hole", "nothing but its size"],
)
def test_what_a_killed_write_left_is_written_anew(source, target, file, left):
    key = f"checkpoints/{AT_6}/{file}"
    path = Path(target.url, key)
    path.parent.mkdir(parents=True)
    path.write_bytes(left(Path(source.url, key).read_bytes()))
    assert transfer(source, target).outcome == "copied"
    assert lies_at(target) == expected_of(source.url)


@pytest.mark.parametrize(
    "changed",
    [
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: bytes([data[0] ^ 1]) + data[1:10],
        lambda data: data + b"x",
        lambda data: data + bytes(ALIGNMENT_BYTES),
    ],
    ids=["first byte", "last byte", "no prefix", "longer", "longer than padding"],
)
def test_other_file_at_target_is_refused_unchanged(source, target, changed):
    path = Path(target.url, WEIGHTS)
    path.parent.mkdir(parents=True)
    path.write_bytes(changed(Path(source.url, WEIGHTS).read_bytes()))
    before = lies_at(target)
    with pytest.raises(ResumeError, match=r"weights-000.*Nothing was changed"):
        transfer(source, target)
    assert lies_at(target) == before


def test_extra_file_at_target_is_refused(source, target):
    stranger = Path(target.url, f"checkpoints/{AT_6}/rank-00001/weights-000.safetensors")
    stranger.parent.mkdir(parents=True)
    stranger.write_bytes(b"")
    with pytest.raises(ResumeError, match="rank-00001"):
        transfer(source, target)
    assert list(lies_at(target)) == [f"checkpoints/{AT_6}/rank-00001/weights-000.safetensors"]


@pytest.mark.parametrize("how", ["flip", "cut", "missing"])
def test_damage_below_target_commit_is_refused_unrepaired(source, target, how):
    transfer(source, target)
    corrupt(Path(target.url), AT_6, how=how)
    before = lies_at(target)
    with pytest.raises(ResumeError, match="weights-000"):
        transfer(source, target)
    assert lies_at(target) == before


def test_a_void_target_is_refused(source, target):
    void(target, NAME, "0" * 32)
    with pytest.raises(ResumeError, match="COMMIT"):
        transfer(source, target)


def test_an_unreadable_target_commit_is_refused(source, target):
    transfer(source, target)
    once = target.inject(Fault(unreadable, operations={"read"}, key="*/COMMIT"))
    assert transfer(source, target).outcome == "present"
    target.inject(Fault(unreadable, operations={"read"}, key="*/COMMIT", times=None))
    with pytest.raises(ResumeError, match="COMMIT"):
        transfer(source, target)
    assert once.fired == 1


def unreadable() -> None:
    raise CorruptCheckpointError("the disk does not give it")


def test_target_file_that_vanishes_is_no_corruption(source, target):
    transfer(source, target)
    target.inject(Fault(Path(target.url, WEIGHTS).unlink, operations={"read_into"}, key=WEIGHTS))
    with pytest.raises(StorageError, match=f"{WEIGHTS} disappeared from {target.url} during the comparison"):
        transfer(source, target)


def test_target_file_cut_meanwhile_is_written_anew(source, target):
    transfer(source, target)
    Path(target.url, f"checkpoints/{AT_6}/COMMIT").unlink()
    target.inject(Fault(lambda: Path(target.url, WEIGHTS).write_bytes(b""), operations={"read_into"}, key=WEIGHTS))
    assert transfer(source, target).outcome == "copied"
    assert lies_at(target) == expected_of(source.url)


def test_a_target_voided_meanwhile_is_not_committed(source, target):
    target.inject(Fault(lambda: void(LocalStorage(target.url), NAME, "0" * 32), operations={"create"}))
    with pytest.raises(StaleAttemptError):
        transfer(source, target)


@pytest.mark.parametrize("how", ["flip", "cut", "missing"])
def test_corrupt_source_commits_nothing(source, target, how):
    """Nor does it leave a wrong byte at the target."""
    good = tree(Path(source.url))
    documents = opened(source)
    corrupt(Path(source.url), AT_6, "rank-00000/optimizer-000.safetensors", how)
    with pytest.raises(CorruptCheckpointError, match="optimizer-000"):
        transfer_checkpoint(source, target, documents)
    left = lies_at(target)
    assert f"checkpoints/{AT_6}/COMMIT" not in left
    assert how == "flip" or not left  # a size is known before anything is read
    assert all(good[key] == data for key, data in left.items())
    Path(source.url, f"checkpoints/{AT_6}/rank-00000/optimizer-000.safetensors").write_bytes(
        good[f"checkpoints/{AT_6}/rank-00000/optimizer-000.safetensors"]
    )
    assert transfer(source, target).outcome == "copied"


class Leaving(DictStorage):
    """Leaves of a write that fails what came until then, as the protocol allows."""

    def write(self, key, stream, size_bytes):
        data = memoryview(bytearray(size_bytes))
        try:
            for at in range(size_bytes):
                stream.readinto(data[at : at + 1])
        finally:
            self.files[key] = bytes(data)


def test_part_of_a_corrupt_file_is_not_left(source):
    """Nothing vouches for it, and it would be in the way of the repaired one."""
    target, documents, path = Leaving(), opened(source), Path(source.url, WEIGHTS)
    sound = path.read_bytes()
    corrupt(Path(source.url), AT_6, WEIGHTS.partition(f"{AT_6}/")[2])
    with pytest.raises(CorruptCheckpointError, match="weights-000"):
        transfer_checkpoint(source, target, documents)
    assert WEIGHTS not in target.files
    path.write_bytes(sound)
    assert transfer(source, target).outcome == "copied"
    assert target.files[WEIGHTS] == sound


def test_source_cut_meanwhile_commits_nothing(source, target):
    cut = Fault(lambda: Path(source.url, WEIGHTS).write_bytes(b"12345"), operations={"read_into"}, key=WEIGHTS)
    source.inject(cut)
    with pytest.raises(CorruptCheckpointError, match=f"{WEIGHTS} ends at byte 5, expected"):
        transfer(source, target)
    assert not {WEIGHTS, f"checkpoints/{AT_6}/COMMIT"} & lies_at(target).keys()


@pytest.mark.parametrize("nth", [1, 2, 5])
def test_a_source_pruned_meanwhile_is_an_outcome(source, target, nth):
    documents = opened(source)
    folder = Path(source.url, "checkpoints", AT_6)

    def prune() -> None:
        (folder / "COMMIT").unlink()
        shutil.rmtree(folder)

    source.inject(Fault(prune, operations={"read_into"}, key=f"checkpoints/{AT_6}/*", nth=nth))
    assert transfer_checkpoint(source, target, documents).outcome == "pruned"
    assert f"checkpoints/{AT_6}/COMMIT" not in lies_at(target)


def test_file_changed_during_transfer_prevents_commit(source, target):
    def cut() -> None:
        Path(target.url, WEIGHTS).write_bytes(b"")

    target.inject(Fault(cut, operations={"write"}, key="*/manifest.json"))
    with pytest.raises(StorageError, match="another process"):
        transfer(source, target)
    assert f"checkpoints/{AT_6}/COMMIT" not in lies_at(target)


class OtherWindow(LocalStorage):
    """A storage that wants to be asked for other amounts."""

    window_bytes = 0

    def __init__(self, root: str, window_bytes: int) -> None:
        super().__init__(root)
        self.window_bytes = window_bytes


@pytest.mark.parametrize("window_bytes", [1, 7, 64, 1000, 1 << 30])
def test_any_window_gives_the_same_bytes(source, target, window_bytes):
    from_there = OtherWindow(source.url, window_bytes)
    assert transfer(from_there, target).outcome == "copied"
    assert lies_at(target) == expected_of(source.url)


def test_memory_is_a_window_whatever_the_size(tmp_path):
    run = NumpyRun(size=4 << 20)  # 16 MiB each
    with CheckpointManager(tmp_path / "source") as manager:
        manager.restore(run)
        name = CheckpointName.parse(manager.save(run).result())
    source, target = LocalStorage(tmp_path / "source"), LocalStorage(tmp_path / "target")
    documents = open_checkpoint(source, name, Index(source).document(1))
    tracemalloc.start()
    try:
        assert transfer_checkpoint(source, target, documents).copied_bytes > 48 << 20
        assert transfer_checkpoint(source, target, documents).found_bytes > 48 << 20
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * source.window_bytes


def test_callback_before_commit_can_prevent_it(source, target):
    seen = []

    def refuse():
        seen.extend(lies_at(target))
        raise StaleAttemptError("taken over")

    moving = Transfer(source, target, opened(source))
    moving.compare()
    with pytest.raises(StaleAttemptError, match="taken over"):
        moving.finish(before_commit=refuse)
    expected = expected_of(source.url)
    assert sorted(seen) == sorted(key for key in expected if not key.endswith("COMMIT"))
    assert sorted(lies_at(target)) == sorted(seen)
    assert moving.finish() == "copied"
    assert lies_at(target) == expected
