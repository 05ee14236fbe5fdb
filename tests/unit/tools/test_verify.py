"""What `ckptkit.tools.verify` finds: every problem and not only the first, and nothing where there is none."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.runs.forge import forge
from support.runs.rank_files import NAME, leaf, write_ranks
from support.runs.scenario import AT_6, Life, committed, corrupt, history, name_at, tree

from ckptkit.core.placement import Box
from ckptkit.errors import CheckpointNotFoundError, StorageError
from ckptkit.format.documents import CopiedFrom, RunDocument, Void, encode
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage, Killed
from ckptkit.tools import verify as audit_module
from ckptkit.tools.verify import audit

AT_4 = name_at(1, 4)
WEIGHTS = "rank-00000/weights-000.safetensors"


class Watch:
    """Counts, from whatever thread it is told."""

    def __init__(self):
        self.planned = None
        self.read_bytes = 0
        self.ends = {}
        self._lock = threading.Lock()

    def plan(self, checkpoints, size_bytes):
        self.planned = (checkpoints, size_bytes)

    def advance(self, size_bytes):
        with self._lock:
            self.read_bytes += size_bytes

    def end(self, name, outcome):
        self.ends[name] = outcome


def audited(root, checkpoint=None, storage=None):
    return audit(storage or LocalStorage(root), Watch(), checkpoint)


def problems(found, name):
    (proof,) = [one for one in found.checkpoints if one.name == name]
    return proof.problems


@pytest.fixture
def root(tmp_path):
    history(tmp_path / "run")
    return tmp_path / "run"


def test_audit_of_whole_run_reads_shards_once(root):
    """It finds nothing, and it writes nothing."""
    before = tree(root)
    storage, watch = FaultyStorage(LocalStorage(root)), Watch()
    found = audit(storage, watch)
    assert found.is_fine
    assert watch.ends == {AT_4: "whole", AT_6: "whole"}
    shards = {key: len(data) for key, data in before.items() if key.endswith(".safetensors")}
    assert sum(key.startswith("frozen/") for key in shards) == 1  # both refer to it
    assert watch.planned == (2, sum(shards.values()))
    assert watch.read_bytes == sum(shards.values())
    read = [call.keys[0] for call in storage.calls if call.operation == "read_into"]
    assert sorted(read) == sorted(shards)
    assert found.start.checkpoint == AT_6
    assert {call.operation for call in storage.calls} <= {"list", "walk", "read", "read_into"}
    assert tree(root) == before


@pytest.mark.parametrize("how", ["flip", "cut", "missing"])
def test_every_file_of_a_checkpoint_is_looked_at(root, how):
    pristine = tree(root)
    for key in sorted(pristine):
        if key == "run.json" and how == "missing":
            continue  # has a test of its own
        if key.startswith("events/"):
            continue  # no checkpoint needs them; `ckptkit report` says which are damaged
        name, _, file = key.removeprefix("checkpoints/").partition("/")
        if key.startswith("checkpoints/"):
            corrupt(root, name, file, how)
        else:
            corrupt(root, "../" + key.rpartition("/")[0], key.rpartition("/")[2], how)
        found = audited(root)
        wrong = [one for proof in found.checkpoints for one in proof.problems] + list(found.problems)
        if key.endswith("/COMMIT") and how == "missing":
            assert found.uncommitted == (name,)
            assert found.is_fine
        else:
            assert not found.is_fine, key
            assert {one.file for one in wrong} >= {key}, key
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(pristine[key])
    assert audited(root).is_fine


def test_audit_reports_every_problem(root):
    corrupt(root, AT_6)
    corrupt(root, AT_6, "rank-00000/optimizer-000.safetensors", "cut")
    corrupt(root, AT_6, "rank-00000/accumulators-000.safetensors", "missing")
    corrupt(root, AT_6, "manifest.json")
    found = audited(root)
    by_file = {one.file.removeprefix(f"checkpoints/{AT_6}/"): one for one in problems(found, AT_6)}
    assert set(by_file) == {
        "manifest.json",
        WEIGHTS,
        "rank-00000/optimizer-000.safetensors",
        "rank-00000/accumulators-000.safetensors",
    }
    assert by_file[WEIGHTS].tensors == ("weights",)
    for file in (WEIGHTS, "manifest.json"):
        one = by_file[file]
        assert one.expected != one.found
        assert one.expected in one.message
        assert one.found in one.message
    assert "is missing" in by_file["rank-00000/accumulators-000.safetensors"].message
    assert problems(found, AT_4) == ()
    assert found.start.checkpoint == AT_4
    assert found.start.passed_over == (AT_6,)


def test_audit_without_manifest_uses_rank_documents(root):
    corrupt(root, AT_6, "manifest.json", "missing")
    corrupt(root, AT_6)
    files = [one.file for one in problems(audited(root), AT_6)]
    assert files == [f"checkpoints/{AT_6}/manifest.json", f"checkpoints/{AT_6}/{WEIGHTS}"]


def test_unparsable_commit_does_not_stop_audit(root):
    corrupt(root, AT_6, "COMMIT")
    corrupt(root, AT_6)
    files = [one.file for one in problems(audited(root), AT_6)]
    assert files == [f"checkpoints/{AT_6}/COMMIT", f"checkpoints/{AT_6}/{WEIGHTS}"]


@pytest.mark.parametrize(("how", "words"), [("missing", "is missing"), ("flip", "is not a valid Manifest")])
def test_manifest_without_readable_commit_is_told(root, how, words):
    corrupt(root, AT_6, "COMMIT")
    if how == "flip":
        (root / f"checkpoints/{AT_6}/manifest.json").write_bytes(b"{")
    else:
        corrupt(root, AT_6, "manifest.json", how)
    _, manifest = problems(audited(root), AT_6)
    assert manifest.file == f"checkpoints/{AT_6}/manifest.json"
    assert words in manifest.message


def test_file_that_becomes_shorter_is_told(root):
    """After the listing that gave its size."""
    path = root / f"checkpoints/{AT_6}/{WEIGHTS}"
    cut = Fault(lambda: path.write_bytes(path.read_bytes()[:50]), operations={"read_into"}, key=f"*/{AT_6}/{WEIGHTS}")
    size_bytes = path.stat().st_size
    found = audited(root, storage=FaultyStorage(LocalStorage(root), [cut]))
    (one,) = problems(found, AT_6)
    assert one.message == f"{one.file} ends at byte 50, expected {size_bytes} (in it: weights)"


def test_bytes_behind_the_end_are_a_problem(root):
    path = root / f"checkpoints/{AT_6}/{WEIGHTS}"
    path.write_bytes(path.read_bytes() + b"x")
    (one,) = problems(audited(root), AT_6)
    assert "bytes, expected" in one.message


def test_contradicting_documents_with_valid_digests_are_problem(root):
    def lie(fields):
        fields["size_bytes"] += 1

    forge(root, AT_6, "manifest", lie)
    (one,) = problems(audited(root), AT_6)
    assert "says that all shards" in one.message


def test_leaf_without_all_its_parts_is_problem(root):
    """As its own document says."""

    def halve(fields):
        (tensor,) = next(one for one in fields["shards"] if one["role"] == "optimizer")["tensors"]
        (size,) = tensor["shape"]
        tensor["part"] = {"global_shape": [2 * size], "offsets": [0]}

    forge(root, AT_6, "rank", halve)
    found = audited(root)
    (one,) = problems(found, AT_6)
    assert "is missing" in one.message
    assert found.start.checkpoint == AT_4


def test_damaged_attempt_document_corrupts_its_checkpoints(root):
    """A start would refuse the run, too."""
    path = root / "attempts/000001.json"
    path.write_bytes(path.read_bytes()[:-1])
    found = audited(root)
    assert [one.file for one in found.problems] == ["attempts/000001.json"]
    assert {one.outcome for one in found.checkpoints} == {"corrupt"}
    assert "000001.json" in found.start.problem


def test_all_corrupt_is_no_fresh_start(root):
    for name in (AT_4, AT_6):
        corrupt(root, name)
    start = audited(root).start
    assert start.checkpoint is None
    assert AT_6 in start.problem


def test_copy_that_has_not_ended_starts_nothing(root):
    """Whatever of it is committed already and whole."""
    origin = CopiedFrom(url="elsewhere", run_id=None, checkpoint=None, last_attempt=7)
    (root / "run.json").write_bytes(encode(RunDocument(run_id="0" * 32, created_at="", copied_from=origin).sealed()))
    found = audited(root)
    assert {one.outcome for one in found.checkpoints} == {"whole"}
    assert found.start.checkpoint is None
    assert "has not ended" in found.start.problem
    assert not found.is_fine


def test_damage_in_several_ranks_is_told():
    storage = write_ranks([[leaf(f"own{rank}", np.arange(3), "per_rank")] for rank in range(4)])
    damaged = [NAME.rank_key(1), NAME.rank_key(2), *(key for key in storage.files if "rank-00003/" in key)]
    for key in damaged:
        storage.files[key] = storage.files[key][:-2] + b"??"
    assert sorted(one.file for one in problems(audited(None, storage=storage), str(NAME))) == sorted(damaged)


def test_a_missing_run_document_is_told(root):
    (root / "run.json").unlink()
    (one,) = audited(root).problems
    assert "the next start creates a new one" in one.message


def test_missing_document_of_attempt_without_commit_is_told(root):
    (root / "attempts/000001.json").unlink()
    for name in (AT_4, AT_6):
        (root / f"checkpoints/{name}/COMMIT").unlink()
    found = audited(root)
    assert [one.message for one in found.problems] == ["attempts/000001.json is missing"]
    assert found.uncommitted == (AT_4, AT_6)


def test_uncommitted_and_void_folders_are_told_and_fine(root):
    life = Life(root)
    life.restore()
    life.storage.inject(Fault("kill", operations={"create"}, key="*/COMMIT"))
    assert isinstance(life.save_at(8).exception(), Killed)
    gone = root / f"checkpoints/{name_at(1, 9)}"
    gone.mkdir()
    (gone / "COMMIT").write_bytes(encode(Void(void_by="1" * 32)))
    found = audited(root)
    assert found.is_fine
    assert found.uncommitted == (name_at(2, 8),)
    assert found.void == (name_at(1, 9),)


def test_audit_of_empty_root_is_fine(tmp_path):
    """A start would begin afresh there."""
    found = audited(tmp_path / "nothing")
    assert found.is_fine
    assert found.start.checkpoint is None
    assert not (tmp_path / "nothing").exists()


def test_one_checkpoint_alone(root):
    corrupt(root, AT_4)
    assert audited(root, "latest").is_fine
    assert not audited(root, AT_4).is_fine
    with pytest.raises(CheckpointNotFoundError, match=AT_6):
        audited(root, name_at(1, 5))
    with pytest.raises(CheckpointNotFoundError):
        audited(root.parent / "nothing", "latest")


@pytest.mark.parametrize("operation", ["read", "read_into"])
def test_concurrent_retention_is_no_problem(root, monkeypatch, operation):
    """At the first read of every file of the older one in turn, one checkpoint at a time."""
    monkeypatch.setattr(audit_module, "_AT_ONCE", 1)
    wanted = [key for key in tree(root) if AT_6 in key and key.endswith(".safetensors") == (operation == "read_into")]
    assert len(wanted) == 3
    for number, key in enumerate(wanted):
        job = root.parent / f"{number}"
        history(job)
        life = Life(job)
        life.restore()
        life.saved_at(8)
        assert committed(job) == [AT_6, name_at(2, 8)]
        storage = FaultyStorage(LocalStorage(job))
        going_on = storage.inject(Fault(lambda life=life: life.saved_at(10), operations={operation}, key=key))
        found = audited(job, storage=storage)
        assert going_on.fired == 1
        assert [one.outcome for one in found.checkpoints] == ["removed", "whole"]
        assert found.is_fine


def test_storage_failure_is_error_not_finding(root):
    storage = FaultyStorage(LocalStorage(root), [Fault("error", operations={"read_into"}, nth=3)])
    with pytest.raises(StorageError, match="injected"):
        audited(root, storage=storage)


def test_damaged_blocks_of_sharded_leaf_name_tensor():
    parts = [
        [
            leaf("a", np.arange(64, dtype=np.float32), Box((128,), (64 * rank,))),
            leaf("b", np.arange(64, dtype=np.float32), Box((128,), (64 * rank,))),
        ]
        for rank in range(2)
    ]
    storage = write_ranks(parts, block_bytes=64)
    storage.files["run.json"] = encode(RunDocument(run_id="1" * 32, created_at="then").sealed())
    assert audit(storage, Watch()).is_fine
    key = f"{NAME.rank_folder(1)}/weights-000.safetensors"
    data = bytearray(storage.files[key])
    data[-1] ^= 1
    storage.files[key] = bytes(data)
    (one,) = problems(audit(storage, Watch()), str(NAME))
    assert one.tensors == ("b",)
    data[-1] ^= 1
    data[10] ^= 1  # of the header
    storage.files[key] = bytes(data)
    (one,) = problems(audit(storage, Watch()), str(NAME))
    assert one.tensors == ()
    assert "in it" not in one.message


def test_audit_reads_large_files_in_windows(root, monkeypatch):
    monkeypatch.setattr("ckptkit.tools.verify._WINDOW_BYTES", 16)
    storage = FaultyStorage(LocalStorage(root))
    assert audited(root, storage=storage).is_fine
    sizes = {key: len(data) for key, data in tree(root).items() if key.endswith(".safetensors")}
    read = [call.keys[0] for call in storage.calls if call.operation == "read_into"]
    assert {key: read.count(key) for key in sizes} == {key: -(-size // 16) for key, size in sizes.items()}
