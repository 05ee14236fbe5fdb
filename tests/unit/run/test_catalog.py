"""What a row of ``ckptkit ls`` says, and what listing, starting and saving ask of the storage of a long run."""

import itertools
import json

import pytest
from support.runs.dict_storage import Counted, DictStorage, pages_of
from support.runs.long_run import long_run, names_of, save, start

from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.errors import StorageError
from ckptkit.format.documents import Void, encode
from ckptkit.format.layout import CheckpointName
from ckptkit.run import catalog
from ckptkit.run.catalog import latest_checkpoint, list_rows
from ckptkit.run.index import Documents
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.testing.faults import Fault


@pytest.fixture
def storage():
    return long_run(1, 3)


@pytest.fixture
def name(storage):
    return CheckpointName.parse(names_of(storage)[-1])


def only_problem(storage, name):
    rows = list_rows(storage, None)
    assert [info.name for info in rows.shown] == names_of(storage)
    assert [info.problem for info in rows.shown if info.name != str(name)] == [None] * (len(rows.shown) - 1)
    return rows.shown[-1].problem


def test_a_row_is_what_opening_the_checkpoint_tells(storage):
    documents = Documents(storage)
    for info in list_rows(storage, None).shown:
        name = CheckpointName.parse(info.name)
        opened = open_checkpoint(storage, name, documents.document(name.attempt)).manifest
        told = (info.progress, info.created_at, info.size_bytes, info.metrics, info.problem)
        assert told == (opened.progress, opened.created_at, opened.size_bytes, opened.metrics, None)


def test_what_a_row_sees_is_named(name):
    made = long_run(1, 3)
    documents = (name.commit_key, name.manifest_key, name.rank_key(0))
    manifest = json.loads(made.files[name.manifest_key])
    newer = json.dumps({**manifest, "format_version": 2}).encode()
    other = CheckpointName.parse(names_of(made)[-2])
    rows = [(key, damaged, key) for key in documents for damaged in (made.files[key][:-1], made.files[key] * 2, b"")]
    rows += [(key, None, f"{key} is missing") for key in documents[1:]]
    rows += [(name.manifest_key, made.files[other.manifest_key], f"is the manifest of {other}")]
    rows += [(name.manifest_key, newer, "has format version 2")]
    rows += [(name.commit_key, made.files[name.commit_key][:46], name.commit_key)]  # of a void's size
    for key, data, problem in rows:
        storage = made.copy()
        if data is None:
            del storage.files[key]
        else:
            storage.files[key] = data
        assert problem in only_problem(storage, name), (key, data)


SIZE = 92  # of each shard
SHARDS = ("rank-00000/optimizer-000.safetensors", "frozen")


def test_missing_or_cut_shard_is_seen_without_reading_any(storage, name):
    for shard, size in itertools.product(SHARDS, (None, SIZE - 1, SIZE + 1)):
        run = storage.copy()
        (key,) = (key for key in run.files if key.startswith((f"{name.folder}/{shard}", f"{shard}/a000002/")))
        run.files.pop(key)
        if size is not None:
            run.files[key] = bytes(size)
        counted = Counted(run)
        problems = [info.problem for info in list_rows(counted, None).shown if info.problem]
        number = 3 if shard == "frozen" else 1  # all of the attempt share it
        assert problems == [f"{key} {f'has {size} bytes, expected {SIZE}' if size else 'is missing'}"] * number
        assert not [read for read in counted.keys("read") if read.endswith(".safetensors")]


def test_no_more_is_asked_for_than_is_listed(storage, name, monkeypatch):
    """A storage may take memory for all that it is allowed to read, and there are many threads."""
    asked = {}
    read = storage.read
    monkeypatch.setattr(storage, "read", lambda key, most: asked.update({key: most}) or read(key, most))
    list_rows(storage, None)
    manifests = {key: most for key, most in asked.items() if key.endswith("/manifest.json")}
    assert manifests == {key: len(storage.files[key]) for key in manifests}
    assert len(manifests) == 4
    monkeypatch.setattr(catalog, "MAX_DOCUMENT_BYTES", len(storage.files[name.manifest_key]) - 1)
    assert "too large for a document" in list_rows(storage, None).shown[-1].problem


def test_voids_and_removed_checkpoints_are_no_rows(storage, name):
    """A void is read only where data lies beside it, a COMMIT only of the two newest, which are always kept."""
    empty = CheckpointName(2, 900, 0)
    full = CheckpointName(2, 901, 0)
    void = encode(Void(void_by="0" * 32))
    storage.files.update({empty.commit_key: void, full.commit_key: void, full.manifest_key: b"{}"})
    counted = Counted(storage)
    shown = [info.name for info in list_rows(counted, None).shown]
    assert shown[-1] == str(name)
    newest = [CheckpointName.parse(text).commit_key for text in shown[-2:]]
    assert {key for key in counted.keys("read") if key.endswith("COMMIT")} == {full.commit_key, *newest}

    def remove():
        storage.files = {key: data for key, data in storage.files.items() if name.folder not in key}

    fault = Fault(remove, operations={"walk"}, when="after")
    assert [info.name for info in list_rows(Counted(storage, [fault]), None).shown] == shown[:-1]
    assert fault.fired == 1


def test_unusable_run_is_listed_with_error(storage):
    storage.files = {key: data for key, data in storage.files.items() if not key.startswith("attempts/")}
    rows = list_rows(storage, 2)
    assert (len(rows.shown), rows.left_out, rows.latest) == (2, 2, None)
    assert "attempts/" in str(rows.problem)
    rows = list_rows(DictStorage(), 50)
    assert (rows.shown, rows.left_out, rows.latest, rows.problem) == ([], 0, None, None)
    failing = Counted(long_run(1), [Fault("error", operations={"read"}, key="*/manifest.json", times=None)])
    with pytest.raises(StorageError, match="injected"):  # no row, and no empty list
        list_rows(failing, None)


COUNTS = (900, 1080, 1020)  # checkpoints by attempt
OWN = "attempts/000004.json"  # of an attempt that starts on it


@pytest.fixture(scope="module")
def made():
    return long_run(*COUNTS)


@pytest.fixture
def run(made):
    return Counted(made.copy())


def newest(storage):
    return names_of(storage._inner)[-1]


def files_of(storage):
    return len(storage._inner.walk("checkpoints/"))


def test_ls_reads_one_document_per_row_and_latest_three(run):
    """It also needs the pages of the walks, the newest attempt's document and the COMMITs of the two newest."""
    latest = latest_checkpoint(run)
    assert (latest.name, latest.problem) == (newest(run), None)
    below = f"checkpoints/{latest.name}"
    assert run.keys("read") == [f"{below}/COMMIT", "attempts/000003.json", f"{below}/manifest.json"]
    assert run.keys("list") == ["checkpoints", "attempts"]
    assert run.pages == 1 + pages_of(sum(COUNTS))
    run.reset()
    rows = list_rows(run, 50)
    assert [info.name for info in rows.shown] == names_of(run._inner)[-50:]
    assert {info.problem for info in rows.shown} == {None}
    assert rows.left_out == 3_000 - 50
    assert rows.latest == newest(run)
    reads = run.keys("read")
    assert sorted(reads) == sorted(
        [
            "attempts/000003.json",
            *(f"checkpoints/{info.name}/manifest.json" for info in rows.shown),
            *(f"checkpoints/{info.name}/COMMIT" for info in rows.shown[-2:]),
        ]
    )
    assert run.pages == 1 + pages_of(files_of(run)) + 1  # the last is that of frozen/


def test_start_reads_one_commit_and_sweep_none(run):
    expected = newest(run)
    _, state = start(run)
    assert state.applied == [expected]
    commits = [key for key in run.keys("read") if key.endswith("/COMMIT")]
    assert set(commits) == {f"checkpoints/{expected}/COMMIT"}
    assert len(commits) <= 5  # chosen, opened, proven, and looked at again
    documents = [key for key in run.keys("read") if key.startswith("attempts/")]
    assert set(documents) == {"attempts/000003.json", OWN}
    assert run.keys("delete") == []
    assert [key for key in run.keys("create") if not key.startswith(("attempts/", "run.json"))] == []
    # Two listings of all folders; one walk of files.
    assert run.pages <= 20 + 2 * pages_of(3_000) + pages_of(files_of(run))


def test_save_requests_do_not_grow_with_checkpoints(run):
    def calls_of_the_third_save(storage):
        manager, state = start(storage)
        save(manager, state)
        save(manager, state)
        storage.reset()
        save(manager, state)
        manager.close()
        calls = [(call.operation, call.keys[0].split("/")[0]) for call in storage.calls]
        return [pair for pair in calls if pair != ("create", "events")]  # these go by the clock

    few = Counted(long_run(3, 4, 3))
    assert calls_of_the_third_save(run) == calls_of_the_third_save(few)
    assert run.keys("read") == [OWN] * 3  # the fence: before the save, before COMMIT, before retention
    assert run.pages == few.pages


def test_retention_reads_each_commit_once():
    run = Counted(long_run(40, 60))
    manager, state = start(run, keep=KeepLatest(90))
    save(manager, state)
    assert len(names_of(run._inner)) == 90
    for _ in range(3):
        run.reset()
        save(manager, state)
        assert len(names_of(run._inner)) == 90
        # The two newest and their attempts are read anew; nothing of the others, and not the ones that go.
        commits = [key for key in run.keys("read") if key.endswith("/COMMIT")]
        assert set(commits) <= {f"checkpoints/{name}/COMMIT" for name in names_of(run._inner)[-2:]}
        assert len(run.keys("read")) <= 3 + 6
