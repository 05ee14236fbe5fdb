"""What `ckptkit.tools.verify` finds: every problem and not only the first, and nothing where there is none."""

import itertools

import numpy as np
import pytest
from support.corrupt import corrupted
from support.runs.forge import forge
from support.runs.rank_files import NAME, commit, documents_of, leaf, write_ranks
from support.runs.scenario import AT_6, Life, committed, corrupt, history, name_at, tree
from support.told_watch import ToldWatch

from ckptkit.core.placement import Box
from ckptkit.errors import CheckpointNotFoundError, StorageError
from ckptkit.format.documents import CopiedFrom, RunDocument, encode
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.tools import verify as audit_module
from ckptkit.tools.verify import audit

AT_4 = name_at(1, 4)
WEIGHTS = "rank-00000/weights-000.safetensors"


def audited(root, checkpoint=None, storage=None):
    return audit(storage or LocalStorage(root), ToldWatch(), checkpoint)


def problems(found, name):
    (proof,) = [proof for proof in found.checkpoints if proof.name == name]
    return proof.problems


@pytest.fixture
def root(tmp_path):
    history(tmp_path / "run")
    return tmp_path / "run"


def test_audit_of_whole_run_reads_shards_once(root, monkeypatch):
    before = tree(root)
    storage, watch = FaultyStorage(LocalStorage(root)), ToldWatch()
    found = audit(storage, watch)
    assert (found.is_fine, found.start.checkpoint) == (True, AT_6)
    assert dict(watch.ended) == {AT_4: "whole", AT_6: "whole"}
    shards = {key: len(data) for key, data in before.items() if key.endswith(".safetensors")}
    assert sum(key.startswith("frozen/") for key in shards) == 1  # both refer to it
    assert (watch.planned, watch.read_bytes) == ([(2, sum(shards.values()))], sum(shards.values()))
    assert sorted(call.keys[0] for call in storage.calls if call.operation == "read_into") == sorted(shards)
    assert {call.operation for call in storage.calls} <= {"list", "walk", "read", "read_into"}
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
    keys = sorted(key for key in pristine if not key.startswith("events/"))
    for key, how in itertools.product(keys, ("flip", "cut", "missing")):
        if how == "missing":
            (root / key).unlink()
        else:
            (root / key).write_bytes(corrupted(pristine[key], how))
        found = audited(root)
        wrong = [*found.problems, *(problem for proof in found.checkpoints for problem in proof.problems)]
        if key.endswith("/COMMIT") and how == "missing":
            assert (found.is_fine, found.uncommitted) == (True, (key.split("/")[1],))
        else:
            assert not found.is_fine, (key, how)
            assert key in {problem.file for problem in wrong}, (key, how)
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(pristine[key])
    assert audited(root).is_fine


def test_wrong_sizes_and_contradictions_are_told(root):
    path = root / f"checkpoints/{AT_6}/{WEIGHTS}"
    data = path.read_bytes()
    cut = Fault(lambda: path.write_bytes(data[:50]), operations={"read_into"}, key=f"*/{AT_6}/{WEIGHTS}")
    (problem,) = problems(audited(root, storage=FaultyStorage(LocalStorage(root), [cut])), AT_6)  # after it was listed
    assert problem.message == f"{problem.file} ends at byte 50, expected {len(data)} (in it: weights)"
    path.write_bytes(data)

    def lie(fields):
        fields["size_bytes"] += 1

    def halve(fields):
        (tensor,) = next(shard for shard in fields["shards"] if shard["role"] == "optimizer")["tensors"]
        tensor["part"] = {"global_shape": [2 * tensor["shape"][0]], "offsets": [0]}

    for document, forgery, words in (("manifest", lie, "says that all shards"), ("rank", halve, "is missing")):
        history(root.parent / document)
        forge(root.parent / document, AT_6, document, forgery)
        found = audited(root.parent / document)
        (problem,) = problems(found, AT_6)
        assert words in problem.message
        assert found.start.checkpoint == AT_4


def test_what_a_start_would_refuse_is_told(root):
    """An unfinished copy; checkpoints that are all corrupt; and attempts of which only folders are left."""
    sound = (root / "run.json").read_bytes()
    origin = CopiedFrom(url="elsewhere", run_id=None, checkpoint=None, last_attempt=7)
    (root / "run.json").write_bytes(encode(RunDocument(run_id="0" * 32, created_at="", copied_from=origin).sealed()))
    found = audited(root)
    assert {proof.outcome for proof in found.checkpoints} == {"whole"}
    assert (found.is_fine, found.start.checkpoint) == (False, None)
    assert "has not ended" in found.start.problem
    (root / "run.json").write_bytes(sound)
    for name in (AT_4, AT_6):
        corrupt(root, name)
    start = audited(root).start
    assert (start.checkpoint, AT_6 in start.problem) == (None, True)
    (root / "attempts/000001.json").unlink()
    for name in (AT_4, AT_6):
        (root / f"checkpoints/{name}/COMMIT").unlink()
    found = audited(root)
    assert found.problems[-1].message == "attempts/000001.json is missing"
    assert found.uncommitted == (AT_4, AT_6)


def test_audit_reports_every_problem(root):
    damages = {WEIGHTS: "flip", "manifest.json": "flip"}
    damages |= {"rank-00000/optimizer-000.safetensors": "cut", "rank-00000/accumulators-000.safetensors": "missing"}
    for file, how in damages.items():
        corrupt(root, AT_6, file, how)
    found = audited(root)
    by_file = {problem.file.removeprefix(f"checkpoints/{AT_6}/"): problem for problem in problems(found, AT_6)}
    assert set(by_file) == set(damages)
    assert by_file[WEIGHTS].tensors == ("weights",)
    for file in (WEIGHTS, "manifest.json"):
        problem = by_file[file]
        assert problem.expected != problem.found
        assert problem.expected in problem.message
        assert problem.found in problem.message
    assert "is missing" in by_file["rank-00000/accumulators-000.safetensors"].message
    assert problems(found, AT_4) == ()
    assert (found.start.checkpoint, found.start.passed_over) == (AT_4, (AT_6,))
    for document in ("manifest.json", "COMMIT"):  # one that cannot be read hides no other damage
        (root / "checkpoints" / AT_6 / document).write_bytes(b"{")
        files = {problem.file.removeprefix(f"checkpoints/{AT_6}/") for problem in problems(audited(root), AT_6)}
        assert files == {*damages, document}


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
        assert [proof.outcome for proof in found.checkpoints] == ["removed", "whole"]
        assert found.is_fine


def test_damaged_blocks_of_sharded_leaf_name_tensor():
    values = np.arange(64, dtype=np.float32)
    parts = [[leaf(name, values, Box((128,), (64 * rank,))) for name in "ab"] for rank in range(2)]
    storage = write_ranks(parts, block_bytes=32)  # the last tensor begins with a block
    storage.files["run.json"] = encode(RunDocument(run_id="1" * 32, created_at="then").sealed())
    assert audited(None, storage=storage).is_fine
    key = f"{NAME.rank_folder(1)}/weights-000.safetensors"
    sound = storage.files[key]
    first, last = len(sound) - values.nbytes, len(sound) - 1  # bytes of the last tensor
    for at, tensors in ((first, ("b",)), (last, ("b",)), (10, ())):  # the last of these is of the header
        storage.files[key] = sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :]
        (problem,) = problems(audited(None, storage=storage), str(NAME))
        assert problem.tensors == tensors
        assert ("in it" in problem.message) == (tensors != ())
    storage.files[key] = sound
    documents = documents_of(storage)
    digests = documents[1].shards[0].blocks.digests
    digests[-1] = digests[0]
    commit(storage, documents)
    (problem,) = problems(audited(None, storage=storage), str(NAME))
    assert problem.tensors == ("b",)
    assert "matches its digest, but not the digests of its blocks" in problem.message
