"""One checkpoint from a storage to another: whole, in order, proven, resumable, and never over something else."""

import functools
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from support.runs import rank_files
from support.runs.dict_storage import DictStorage
from support.runs.rank_files import leaf, write_ranks
from support.runs.scenario import AT_6, Tree, corrupt, history, name_at, tree
from support.wire import Wire

from ckptkit.checkpoint.commit import void
from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.transfer import Transfer, files_of
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError, StaleAttemptError, StorageError
from ckptkit.format.layout import CheckpointName
from ckptkit.run.index import Index
from ckptkit.storage import LocalStorage
from ckptkit.storage.direct import ALIGNMENT_BYTES
from ckptkit.testing.faults import MUTATING, Fault, FaultyStorage

NAME = CheckpointName.parse(AT_6)
COMMIT = NAME.commit_key
WEIGHTS = f"{NAME.rank_folder(0)}/weights-000.safetensors"
OPTIMIZER = f"{NAME.rank_folder(0)}/optimizer-000.safetensors"


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


def transfer(source, target, documents=None, report=None) -> Transferred:
    """Take both steps at once."""
    moving = Transfer(source, target, documents or opened(source))
    try:
        moving.compare(report)
        outcome = moving.finish(report)
    except CheckpointNotFoundError:
        outcome = "pruned"
    return Transferred(outcome, moving.copied_bytes, moving.found_bytes)


def lies_at(storage) -> Tree:
    return {key: data for key, data in tree(Path(storage.url)).items() if not key.endswith(".tmp")}


def expected_of(source) -> Tree:
    """The files of the checkpoint, and the frozen ones of its attempt."""
    return {key: data for key, data in lies_at(source).items() if key.startswith((f"{NAME.folder}/", "frozen/"))}


def put(storage, key: str, data: bytes | None) -> None:
    """Has ``data`` lie there, or nothing."""
    path = Path(storage.url, key)
    path.unlink(missing_ok=True)
    if data is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def test_transfer_writes_every_byte_in_protocol_order(source, target):
    told: list[int] = []
    done = transfer(source, target, report=told.append)
    expected = expected_of(source)
    assert lies_at(target) == expected
    size = sum(len(data) for key, data in expected.items() if key != COMMIT)
    assert done == Transferred("copied", copied_bytes=size)
    assert sum(told) == size
    changes = [call for call in target.calls if call.operation in ("write", "create", "delete")]
    kinds = [call.keys[0].removeprefix(f"{NAME.folder}/").partition("/")[0] for call in changes]
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
    assert changes == [("create", (COMMIT,))]
    assert lies_at(target) == left
    wire = Wire(LocalStorage(target.url), WEIGHTS, "flip")
    assert transfer(source, wire).outcome == "present"
    assert wire.fired == 1  # one wrong answer is no difference
    before = len(target.calls)
    Transfer(source, target, opened(source), {file.key for file in files_of(opened(source))}).compare()
    asked = [(call.operation, call.keys) for call in target.calls[before:] if call.keys != (COMMIT,)]
    assert asked == [("walk", (f"{NAME.folder}/",)), ("list", ("frozen/a000001",))]  # proven files cost two listings


def test_found_file_without_commit_is_written_anew(source, target):
    """Its bytes are right, and whoever wrote them may have died before the fsync; in an object store, they stay."""
    transfer(source, target)
    put(target, COMMIT, None)
    expected = sum(len(data) for key, data in lies_at(target).items())
    assert transfer(source, target) == Transferred("copied", copied_bytes=expected)
    assert lies_at(target) == expected_of(source)
    remote = DictStorage()
    size = transfer(source, remote).copied_bytes
    remote.delete([COMMIT])
    assert transfer(source, remote) == Transferred("copied", found_bytes=size)


def test_proven_file_that_is_gone_is_written_again(source, target):
    """It was there once; somebody has removed or cut it since."""
    key = next(file.key for file in files_of(opened(source)) if file.key.startswith("frozen/"))
    put(target, key, b"\0")
    proven = {key, WEIGHTS}
    moving = Transfer(source, target, opened(source), proven)
    moving.compare()
    assert proven == set()
    assert moving.finish() == "copied"
    assert lies_at(target) == expected_of(source)


@pytest.mark.parametrize("readable", [True, False], ids=["readable", "unreadable"])
def test_frozen_shard_of_another_commit_is_never_removed(source, target, readable):
    transfer(source, target)
    if not readable:
        corrupt(Path(target.url), AT_6, "manifest.json")
    (frozen,) = (key for key in lies_at(target) if key.startswith("frozen/"))
    sound = lies_at(target)[frozen]
    older = open_checkpoint(source, CheckpointName.parse(name_at(1, 4)), Index(source).document(1))
    for left in (b"\xff" + sound[1:], sound[:-1], sound):
        put(target, frozen, left)
        before = len(target.calls)
        if left == sound:
            assert transfer(source, target, older).found_bytes == len(left)
        else:
            with pytest.raises(ResumeError, match="frozen"):
                transfer(source, target, older)
        assert lies_at(target)[frozen] == left
        assert frozen not in [key for call in target.calls[before:] if call.operation in MUTATING for key in call.keys]


LEFT_BY_A_KILL = [
    lambda data: b"",
    lambda data: data[:-1],
    lambda data: data + bytes(ALIGNMENT_BYTES - 1),  # a direct write that was killed before the cut
    lambda data: data,
    lambda data: data[:10] + bytes(20) + data[30:],  # blocks that had not reached the disk when the power went
    lambda data: bytes(len(data)),
]
OF_SOMEBODY_ELSE = [
    lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    lambda data: bytes([data[0] ^ 1]) + data[1:10],
    lambda data: data + bytes(ALIGNMENT_BYTES),  # longer than padding
]


def test_what_a_killed_write_left_is_written_anew(tmp_path, source):
    for number, left in enumerate(LEFT_BY_A_KILL):
        for file in (NAME.manifest_key, NAME.rank_key(0), WEIGHTS):
            target = LocalStorage(tmp_path / f"{number}-{file[-9:]}")
            put(target, file, left(Path(source.url, file).read_bytes()))
            assert transfer(source, target).outcome == "copied", (number, file)
            assert lies_at(target) == expected_of(source)


def test_other_file_at_target_is_refused_unchanged(tmp_path, source):
    sound = Path(source.url, WEIGHTS).read_bytes()
    rows = [(WEIGHTS, change(sound)) for change in OF_SOMEBODY_ELSE]
    rows.append((WEIGHTS.replace("rank-00000", "rank-00001"), b""))  # which the checkpoint does not have
    for number, (key, data) in enumerate(rows):
        target = LocalStorage(tmp_path / str(number))
        put(target, key, data)
        with pytest.raises(ResumeError, match=rf"{key}.*Nothing was changed"):
            transfer(source, target)
        assert lies_at(target) == {key: data}, number


def unreadable() -> None:
    raise CorruptCheckpointError("the disk does not give it")


def test_damage_below_target_commit_is_refused_unrepaired(tmp_path, source, target):
    """Of a file, and of the COMMIT; one wrong answer is none."""
    transfer(source, target)
    once = target.inject(Fault(unreadable, operations={"read"}, key="*/COMMIT"))
    assert transfer(source, target).outcome == "present"
    assert once.fired == 1
    target.inject(Fault(unreadable, operations={"read"}, key="*/COMMIT", times=None))
    missing, flipped, is_void = (LocalStorage(tmp_path / name) for name in ("missing", "flipped", "void"))
    for storage, how in ((missing, "missing"), (flipped, "flip")):
        transfer(source, storage)
        corrupt(Path(storage.url), AT_6, how=how)
    void(is_void, NAME, "0" * 32)
    for storage, named in ((target, "COMMIT"), (missing, "weights-000"), (flipped, "weights-000"), (is_void, "COMMIT")):
        before = lies_at(storage)
        with pytest.raises(ResumeError, match=named):
            transfer(source, storage)
        assert lies_at(storage) == before


def test_target_that_changes_meanwhile(tmp_path, source):
    """It is no corruption, and commits nothing."""
    for at, key, left, said in [
        ("read_into", WEIGHTS, None, f"{WEIGHTS} disappeared from .* during the comparison"),
        ("write", NAME.manifest_key, b"", "another process"),
    ]:
        target = FaultyStorage(LocalStorage(tmp_path / at))
        if at == "read_into":
            transfer(source, target)
            put(target, COMMIT, None)
        fault = target.inject(Fault(functools.partial(put, target, WEIGHTS, left), operations={at}, key=key))
        with pytest.raises(StorageError, match=said):
            transfer(source, target)
        assert COMMIT not in lies_at(target)
        assert fault.fired == 1
    target = FaultyStorage(LocalStorage(tmp_path / "voided"))
    target.inject(Fault(lambda: void(LocalStorage(target.url), NAME, "0" * 32), operations={"create"}))
    with pytest.raises(StaleAttemptError):
        transfer(source, target)
    of_two, target = write_ranks([[leaf("w", np.arange(64.0))]] * 2), DictStorage()
    own = Transfer(of_two, target, rank_files.opened(of_two), rank=0)
    own.compare()
    with pytest.raises(StorageError, match=r"rank-00001.* changed after it was copied"):
        own.finish()  # of the other rank's part, nothing is there
    assert rank_files.NAME.commit_key not in target.files


def test_corrupt_source_commits_nothing(tmp_path, source):
    """Nor does it leave a wrong byte at the target."""
    good, documents = tree(Path(source.url)), opened(source)
    for how in ("flip", "cut", "missing"):
        target = LocalStorage(tmp_path / how)
        corrupt(Path(source.url), AT_6, "rank-00000/optimizer-000.safetensors", how)
        with pytest.raises(CorruptCheckpointError, match="optimizer-000"):
            transfer(source, target, documents)
        left = lies_at(target)
        assert COMMIT not in left
        assert how == "flip" or not left  # a size is known before anything is read
        assert all(good[key] == data for key, data in left.items())
        put(source, OPTIMIZER, good[OPTIMIZER])
        assert transfer(source, target).outcome == "copied"


def test_part_of_a_corrupt_file_is_not_left(source):
    """A failed write may leave some of it, as the protocol allows, which would be in the way of the repaired file."""

    class Leaving(DictStorage):
        def write(self, key, stream, size_bytes):
            try:
                super().write(key, stream, size_bytes)
            except CorruptCheckpointError:
                self.files[key] = b"some of it"
                raise

    target, documents, sound = Leaving(), opened(source), Path(source.url, WEIGHTS).read_bytes()
    corrupt(Path(source.url), AT_6)
    with pytest.raises(CorruptCheckpointError, match="weights-000"):
        transfer(source, target, documents)
    assert WEIGHTS not in target.files
    put(source, WEIGHTS, sound)
    assert transfer(source, target).outcome == "copied"
    assert target.files[WEIGHTS] == sound


def test_source_that_changes_meanwhile_commits_nothing(source, target):
    """If it is pruned, that is an outcome."""
    documents, sound = opened(source), Path(source.url, WEIGHTS).read_bytes()
    source.inject(Fault(lambda: put(source, WEIGHTS, b"12345"), operations={"read_into"}, key=WEIGHTS))
    with pytest.raises(CorruptCheckpointError, match=f"{WEIGHTS} ends at byte 5, expected"):
        transfer(source, target, documents)
    assert not {WEIGHTS, COMMIT} & lies_at(target).keys()
    put(source, WEIGHTS, sound)

    def prune() -> None:
        put(source, COMMIT, None)
        shutil.rmtree(Path(source.url, NAME.folder))

    source.inject(Fault(prune, operations={"read_into"}, key=f"{NAME.folder}/*", nth=2))
    assert transfer(source, target, documents).outcome == "pruned"
    assert COMMIT not in lies_at(target)
