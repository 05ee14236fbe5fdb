"""What a person may call a checkpoint, and which one is opened, also while a job is running."""

import pytest
from support.runs.dict_storage import Counted, DictStorage
from support.runs.grown import ON_REQUEST
from support.runs.long_run import long_run, names_of

from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, StorageError
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.index import Index
from ckptkit.run.keep_policy import KeepBest, KeepEvery, KeepLatest
from ckptkit.run.resolve import choose, named, open_wanted
from ckptkit.testing.faults import Fault
from ckptkit.testing.state import NumpyRun

KEEP = KeepLatest(9)
LOSSES = {at: {"loss": loss} for at, loss in ((3, 0.9), (5, 0.5), (8, 0.1), (9, 0.3), (12, float("nan")))}  # K is 4


def attempt(storage, checkpoint, saves=None, *, keep=KEEP, rewind=False) -> str | None:
    """Start, save after these batches with these metrics, and return the checkpoint that the start continued from."""
    with CheckpointManager(storage, save=ON_REQUEST, keep=keep) as manager:
        run = NumpyRun()
        point = manager.restore(run, checkpoint=checkpoint, rewind=rewind)
        for batches, metrics in (saves or {}).items():
            for _ in run.train_until(batches):
                pass
            manager.save(run, metrics).result()
    return point.checkpoint


@pytest.fixture
def storage() -> DictStorage:
    storage = DictStorage()
    attempt(storage, "latest", LOSSES)
    return storage


CALLED = {
    "a000001-c0000000000": "a000001-c0000000000-m0003",
    "a000001-c0000000002-m0001": "a000001-c0000000002-m0001",
    "0": "a000001-c0000000000-m0003",  # no boundary was saved: what is alone within the cycle
    "2": "a000001-c0000000002-m0000",  # the end of the step, and not what came after it
    "step-2": "a000001-c0000000002-m0000",
    "003": "a000001-c0000000003-m0000",
    "best:loss:min": "a000001-c0000000002-m0000",
    "best:loss:max": "a000001-c0000000000-m0003",
}


def test_every_way_to_call_a_checkpoint_names_it(storage):
    for text, name in CALLED.items():
        run = DictStorage({**storage.files})
        assert str(named(Index(run), text)) == str(open_wanted(run, text).name) == name, text
        assert attempt(run, int(text) if text.isdigit() else text) == name, text


def test_ambiguous_beginning_lists_candidates_in_four_lines(storage):
    with pytest.raises(CheckpointNotFoundError) as caught:
        named(Index(storage), "a000001")
    first, *candidates = str(caught.value).splitlines()
    assert first == "'a000001' may be any of 5 checkpoints. Give more of the name of one:"
    assert candidates[:2] == ["  a000001-c0000000003-m0000", "  a000001-c0000000002-m0001"]
    assert len(candidates) == 3
    attempt(storage, "a000001-c0000000000-m0003", {8: None}, rewind=True)
    with pytest.raises(CheckpointNotFoundError, match="'2' may be any of 2 checkpoints"):
        named(Index(storage), "2")


def test_what_names_nothing_says_what_is_there(storage):
    for text in ("7", "step-7", "a000002", "", "newest", "step-", "-1", "m0003"):
        with pytest.raises(CheckpointNotFoundError, match=f"no committed checkpoint '{text}'; there are: a000001-c00"):
            named(Index(storage), text)
        with pytest.raises(CheckpointNotFoundError, match="no committed checkpoint at dict://run"):
            named(Index(DictStorage()), text)
    for name in ("latest", "a000001-c0000000009-m0000"):
        with pytest.raises(CheckpointNotFoundError, match="no committed checkpoint at dict://run"):
            open_wanted(DictStorage(), name)
    for name in ("a000001-c0000000009-m0000", "a000007-c0000000001-m0000"):
        with pytest.raises(CheckpointNotFoundError, match="there are: a000001-c00"):
            open_wanted(storage, name)


def test_later_try_of_a_point_is_taken(storage):
    """A second save of one point has other metrics and the same state."""
    attempt(storage, "latest", {13: {"loss": 1.0}})
    with CheckpointManager(storage, save=ON_REQUEST, keep=KEEP) as manager:
        manager.restore(run := NumpyRun())
        names = [manager.save_final(run, {name: 1.0}) for name in ("a", "b")]
    assert names == ["a000003-c0000000003-m0001", "a000003-c0000000003-m0001-t02"]
    assert str(named(Index(storage), "a000003")) == names[1]
    assert str(named(Index(storage), names[0])) == names[0]


def test_keep_best_of_the_script_ranks(storage):
    """Without one, or with two, the error says what to write."""
    for text in ("best", "best:loss", "best:accuracy:max", "best:loss:lowest", "best::max"):
        with pytest.raises(CheckpointNotFoundError, match=r"best:METRIC:max or best:METRIC:min.*has saved: loss\. "):
            named(Index(storage), text)
    ranked = KEEP | KeepBest(2, "loss", "max") | KeepEvery(4)
    assert attempt(storage, "best", keep=ranked) == CALLED["best:loss:max"]
    with pytest.raises(CheckpointNotFoundError, match="best:METRIC"):
        attempt(storage, "best", keep=ranked | KeepBest(1, "loss", "min"))


@pytest.mark.covering(1)
@pytest.mark.parametrize("text", ["2", "a000001-c0000000002-m0000", "a000001-c0000000002", "best:loss:min"])
@pytest.mark.parametrize("is_removed", [False, True])
def test_same_call_after_a_death_goes_on(storage, text, is_removed):
    """Even where another is better since, the beginning has become ambiguous, or retention removed what was named."""
    remove(storage, "c0000000002-m0001")
    assert attempt(storage, text, {10: None, 12: {"loss": 0.01}, 16: None}) == CALLED["2"]
    if is_removed:
        remove(storage, CALLED["2"])
    for _ in range(2):  # the first leaves no checkpoint
        assert attempt(storage, text) == "a000002-c0000000004-m0000"
    assert attempt(storage, text, {17: None}) == "a000002-c0000000004-m0000"
    assert attempt(storage, text) == "a000005-c0000000004-m0001"


@pytest.mark.parametrize("text", ["2", "a000001-c0000000002-m0000", "best:loss:min"])
def test_unreadable_attempt_leaves_it_open_whether_the_run_went_on(storage, text):
    attempt(storage, text, {10: None, 16: None})
    assert attempt(DictStorage({**storage.files}), text, rewind=True) == CALLED["2"], "it goes back in any case"
    attempt(storage, "latest", {17: None})
    storage.files["attempts/000002.json"] = b"{}"
    with pytest.raises(
        CorruptCheckpointError, match="unknown whether the run already continued from a000001-c0000000002"
    ):
        attempt(storage, text)


def test_step_and_best_mean_their_own_after_another_was_named(storage):
    """Of a step, its end; a run that once went back to a checkpoint by its name may go back to its best."""
    attempt(storage, "a000001-c0000000002-m0001", {10: None, 12: None})
    assert attempt(storage, "2", {9: None}) == CALLED["2"]
    assert attempt(storage, "2") == "a000003-c0000000002-m0001"
    assert attempt(storage, "best:loss:max") == CALLED["best:loss:max"]


def remove(storage: DictStorage, part: str) -> None:
    storage.files = {key: data for key, data in storage.files.items() if part not in key}


class Pruned(DictStorage):
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
