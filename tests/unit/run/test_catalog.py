"""What a row of ``ckptkit ls`` finds out by itself, and what it leaves to ``verify``."""

from __future__ import annotations

import itertools
import json
from datetime import datetime, timezone

import pytest
from support.runs.dict_storage import Counted, DictStorage
from support.runs.forge import sealed
from support.runs.long_run import long_run, names_of

from ckptkit.cli.commands import ls
from ckptkit.errors import StorageError
from ckptkit.format.documents import Void, encode
from ckptkit.format.layout import CheckpointName
from ckptkit.run import catalog
from ckptkit.run.catalog import list_checkpoints, list_rows
from ckptkit.testing.faults import Fault

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def storage():
    return long_run(1, 3)


@pytest.fixture
def name(storage):
    return CheckpointName.parse(names_of(storage)[-1])


def only_problem(storage, name):
    """The problem of ``name``, which is listed among sound ones."""
    rows = list_rows(storage, None)
    assert [info.name for info in rows.shown] == names_of(storage)
    assert [info.problem for info in rows.shown if info.name != str(name)] == [None] * (len(rows.shown) - 1)
    return rows.shown[-1].problem


def test_a_row_is_what_opening_the_checkpoint_tells(storage):
    assert list_rows(storage, None).shown == list_checkpoints(storage)


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


def test_sound_row_costs_one_read(storage):
    counted = Counted(storage)
    list_rows(counted, None)
    assert not [key for key in counted.keys("read") if "rank-" in key]


def test_no_more_is_asked_for_than_is_listed(storage, monkeypatch):
    """A storage may take memory for all that it is allowed to read, and there are 16 threads."""
    asked = {}
    read = storage.read
    monkeypatch.setattr(storage, "read", lambda key, most: asked.update({key: most}) or read(key, most))
    list_rows(storage, None)
    manifests = {key: most for key, most in asked.items() if key.endswith("/manifest.json")}
    assert manifests == {key: len(storage.files[key]) for key in manifests}
    assert len(manifests) == 4


def test_oversized_manifest_is_not_read(storage, name, monkeypatch):
    monkeypatch.setattr(catalog, "MAX_DOCUMENT_BYTES", len(storage.files[name.manifest_key]) - 1)
    assert "too large for a document" in list_rows(storage, None).shown[-1].problem


def test_a_commit_of_other_content_is_for_verify(storage, name):
    commit = json.loads(storage.files[name.commit_key])
    storage.files[name.commit_key] = sealed({**commit, "manifest_digest": "0" * 32})
    assert only_problem(storage, name) is None
    assert name.manifest_key in list_checkpoints(storage)[-1].problem


def test_checkpoint_removed_during_listing_is_no_row(storage, name):
    def remove():
        storage.files = {key: data for key, data in storage.files.items() if name.folder not in key}

    fault = Fault(remove, operations={"walk"}, when="after")
    rows = list_rows(Counted(storage, [fault]), None)
    assert fault.fired == 1
    assert [info.name for info in rows.shown] == names_of(storage)


def test_voids_are_no_rows(storage, name):
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


def test_unusable_run_is_listed_with_error(storage):
    storage.files = {key: data for key, data in storage.files.items() if not key.startswith("attempts/")}
    rows = list_rows(storage, 2)
    assert (len(rows.shown), rows.left_out, rows.latest) == (2, 2, None)
    assert "attempts/" in str(rows.problem)
    rows = list_rows(DictStorage(), 50)
    assert (rows.shown, rows.left_out, rows.latest, rows.problem) == ([], 0, None, None)


def test_storage_failure_is_no_row_or_empty_list(storage, monkeypatch, capsys):
    failing = Counted(storage, [Fault("error", operations={"read"}, key="*/manifest.json", times=None)])
    with pytest.raises(StorageError, match="injected"):
        list_rows(failing, None)
    with pytest.raises(StorageError, match="injected"):
        list_checkpoints(failing)
    monkeypatch.setattr(ls, "open_root", lambda root, options: failing)
    with pytest.raises(StorageError, match="injected"):
        ls.run_ls("run", now=NOW, as_json=False)
    assert capsys.readouterr().out == ""
