"""Which checkpoint a person gets who asks for the latest or for a name, also while a job is running."""

from __future__ import annotations

from secrets import token_hex

import pytest
from support.runs.dict_storage import Counted, DictStorage
from support.runs.long_run import long_run, names_of

from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError, StorageError
from ckptkit.format.documents import CopiedFrom, RunDocument, encode
from ckptkit.format.layout import CheckpointName
from ckptkit.run.index import Index
from ckptkit.run.resolve import choose, open_wanted
from ckptkit.testing.faults import Fault


class Pruned(DictStorage):
    """Removes a checkpoint when its manifest is read, as often as is asked for."""

    times = 1

    def read(self, key: str, max_bytes: int) -> bytes:
        if key.endswith("manifest.json") and self.times:
            self.times -= 1
            folder = key.rpartition("/")[0]
            self.files = {path: data for path, data in self.files.items() if not path.startswith(folder)}
        return super().read(key, max_bytes)


def test_latest_is_first_choice_and_name_costs_no_listing():
    storage = long_run(2, 3)
    assert open_wanted(storage).name == choose(Index(storage)).first
    counted, older = Counted(storage), names_of(storage)[0]
    assert str(open_wanted(counted, older).name) == older
    assert counted.pages == 0


def test_retention_of_latest_triggers_newer_look():
    storage = Pruned(long_run(12).files)
    *_, before, newest = names_of(storage)
    assert str(open_wanted(storage).name) == before
    storage = Pruned(long_run(12).files)
    with pytest.raises(CheckpointNotFoundError, match=f"{newest}.* removed|no committed checkpoint '{newest}'"):
        open_wanted(storage, newest)
    storage.times = 100
    with pytest.raises(StorageError, match="10 times in a row"):
        open_wanted(storage)


def test_named_one_committed_meanwhile_is_opened():
    storage = long_run(2)
    name = CheckpointName.parse(names_of(storage)[-1])
    commit = storage.files.pop(name.commit_key)
    publish = Fault(lambda: storage.create(name.commit_key, commit), operations={"list", "walk"})
    assert open_wanted(Counted(storage, [publish]), str(name)).name == name
    assert publish.fired == 1


def test_unfinished_copy_is_no_empty_run():
    origin = CopiedFrom(url="elsewhere", run_id=None, checkpoint=None, last_attempt=1)
    document = RunDocument(run_id=token_hex(16), created_at="then", copied_from=origin).sealed()
    without_attempts = {key: data for key, data in long_run(2).files.items() if not key.startswith("attempts/")}
    for files in ({}, without_attempts):
        with pytest.raises(ResumeError, match="a copy of elsewhere that has not ended"):
            open_wanted(DictStorage({**files, "run.json": encode(document)}))


def test_corrupt_wanted_checkpoint_is_named_not_skipped():
    storage = long_run(3)
    newest = CheckpointName.parse(names_of(storage)[-1])
    data = storage.files[newest.rank_key(0)]
    storage.files[newest.rank_key(0)] = data.replace(b'"rank":0', b'"rank":1')
    for checkpoint in ("latest", str(newest)):
        with pytest.raises(CorruptCheckpointError, match=r"rank-00000\.json"):
            open_wanted(storage, checkpoint)
    del storage.files["attempts/000001.json"]
    with pytest.raises(CorruptCheckpointError, match=r"000001\.json is missing"):
        open_wanted(storage, str(newest))


def test_checkpoint_that_never_was_is_not_corrupt():
    with pytest.raises(CheckpointNotFoundError, match="no committed checkpoint at dict://run"):
        open_wanted(DictStorage())
    storage = long_run(2)
    for name in (CheckpointName(1, 9, 0), CheckpointName(7, 1, 0)):
        with pytest.raises(CheckpointNotFoundError, match=f"there are: {', '.join(names_of(storage))}"):
            open_wanted(storage, str(name))
