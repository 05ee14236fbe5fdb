"""What `ckptkit.tools.verify` finds: every problem and not only the first, and nothing where there is none."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from support.corrupt import corrupted
from support.runs.forge import forge
from support.runs.rank_files import NAME, commit, documents_of, leaf, write_ranks
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


def test_audit_of_whole_run_reads_shards_once(root, monkeypatch):
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
    assert sorted(call.keys[0] for call in storage.calls if call.operation == "read_into") == sorted(shards)
    assert found.start.checkpoint == AT_6
    assert {call.operation for call in storage.calls} <= {"list", "walk", "read", "read_into"}
    assert tree(root) == before
    monkeypatch.setattr("ckptkit.tools.verify._WINDOW_BYTES", 16)  # large files are read in windows
    storage = FaultyStorage(LocalStorage(root))
    assert audited(root, storage=storage).is_fine
    read = [call.keys[0] for call in storage.calls if call.operation == "read_into"]
    assert {key: read.count(key) for key in shards} == {key: -(-size // 16) for key, size in shards.items()}
    failing = FaultyStorage(LocalStorage(root), [Fault("error", operations={"read_into"}, nth=3)])
    with pytest.raises(StorageError, match="injected"):  # an error, and no finding
        audited(root, storage=failing)


def test_every_file_of_a_checkpoint_is_looked_at(root):
    pristine = tree(root)
    # No checkpoint needs events; `ckptkit report` says which are damaged.
    for key in sorted(key for key in pristine if not key.startswith("events/")):
        for how in ("flip", "cut", "missing"):
            if how == "missing":
                (root / key).unlink()
            else:
                (root / key).write_bytes(corrupted(pristine[key], how))
            found = audited(root)
            wrong = {one.file for proof in found.checkpoints for one in proof.problems}
            wrong |= {one.file for one in found.problems}
            if key.endswith("/COMMIT") and how == "missing":
                assert found.uncommitted == (key.split("/")[1],)
                assert found.is_fine
            else:
                assert not found.is_fine, (key, how)
                assert key in wrong, (key, how)
            (root / key).parent.mkdir(parents=True, exist_ok=True)
            (root / key).write_bytes(pristine[key])
    assert audited(root).is_fine


def test_unreadable_documents_do_not_stop_the_audit(root):
    """The rank documents, or the folder, say what else there is."""
    folder, pristine = root / "checkpoints" / AT_6, tree(root)
    for document, damage, words in (
        ("manifest.json", Path.unlink, "is missing"),
        ("COMMIT", lambda path: path.write_bytes(b"{"), "is not a valid Commit"),
    ):
        damage(folder / document)
        corrupt(root, AT_6)
        unreadable, shard = problems(audited(root), AT_6)
        assert (unreadable.file, shard.file) == (f"checkpoints/{AT_6}/{document}", f"checkpoints/{AT_6}/{WEIGHTS}")
        assert words in unreadable.message
        if document == "COMMIT":  # nor can the manifest be read
            (folder / "manifest.json").write_bytes(b"{")
            manifest = problems(audited(root), AT_6)[1]
            assert manifest.file == f"checkpoints/{AT_6}/manifest.json"
            assert "is not a valid Manifest" in manifest.message
        for file in (document, WEIGHTS):
            (folder / file).write_bytes(pristine[f"checkpoints/{AT_6}/{file}"])


def test_wrong_sizes_and_contradictions_are_told(root):
    path = root / f"checkpoints/{AT_6}/{WEIGHTS}"
    data = path.read_bytes()
    cut = Fault(lambda: path.write_bytes(data[:50]), operations={"read_into"}, key=f"*/{AT_6}/{WEIGHTS}")
    (one,) = problems(audited(root, storage=FaultyStorage(LocalStorage(root), [cut])), AT_6)  # after it was listed
    assert one.message == f"{one.file} ends at byte 50, expected {len(data)} (in it: weights)"
    path.write_bytes(data + b"x")
    (one,) = problems(audited(root), AT_6)
    assert "bytes, expected" in one.message
    path.write_bytes(data)

    def lie(fields):
        fields["size_bytes"] += 1

    def halve(fields):
        (tensor,) = next(one for one in fields["shards"] if one["role"] == "optimizer")["tensors"]
        (size,) = tensor["shape"]
        tensor["part"] = {"global_shape": [2 * size], "offsets": [0]}

    for document, forgery, words in (("manifest", lie, "says that all shards"), ("rank", halve, "is missing")):
        history(root.parent / document)
        forge(root.parent / document, AT_6, document, forgery)
        found = audited(root.parent / document)
        (one,) = problems(found, AT_6)
        assert words in one.message
        assert found.start.checkpoint == AT_4


def test_what_a_start_would_refuse_is_told(root):
    (root / "run.json").rename(root / "away")
    (one,) = audited(root).problems
    assert "the next start creates a new one" in one.message
    (root / "away").rename(root / "run.json")
    path = root / "attempts/000001.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    found = audited(root)
    assert [one.file for one in found.problems] == ["attempts/000001.json"]
    assert {one.outcome for one in found.checkpoints} == {"corrupt"}
    assert "000001.json" in found.start.problem
    path.write_bytes(whole)
    for name in (AT_4, AT_6):
        corrupt(root, name)
    start = audited(root).start
    assert (start.checkpoint, AT_6 in start.problem) == (None, True)
    path.unlink()
    for name in (AT_4, AT_6):
        (root / f"checkpoints/{name}/COMMIT").unlink()
    found = audited(root)
    assert [one.message for one in found.problems] == ["attempts/000001.json is missing"]
    assert found.uncommitted == (AT_4, AT_6)


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


def test_one_checkpoint_alone(root):
    corrupt(root, AT_4)
    assert audited(root, "latest").is_fine
    assert not audited(root, AT_4).is_fine
    with pytest.raises(CheckpointNotFoundError, match=AT_6):
        audited(root, name_at(1, 5))
    nothing = root.parent / "nothing"
    with pytest.raises(CheckpointNotFoundError):
        audited(nothing, "latest")
    found = audited(nothing)  # a start would begin afresh there
    assert (found.is_fine, found.start.checkpoint, nothing.exists()) == (True, None, False)


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
    data[10] ^= 1
    storage.files[key] = bytes(data)
    documents = documents_of(storage)
    digests = documents[1].shards[0].blocks.digests
    digests[-1] = digests[0]
    commit(storage, documents)
    (one,) = problems(audit(storage, Watch()), str(NAME))
    assert one.tensors == ("b",)
    assert "matches its digest, but not the digests of its blocks" in one.message
