"""A start finds its later candidates only when it needs them: what went away meanwhile must not mislead it."""

import pytest
from support.runs.scenario import Life, attempts, check_new_start, committed, corrupt, digest_at, name_at, tree

from ckptkit.errors import CorruptCheckpointError
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.testing.faults import Fault


@pytest.fixture
def root(tmp_path):
    return tmp_path / "run"


def running(root, *batches, keep=2):
    life = Life(root, keep=KeepLatest(keep))
    life.restore()
    for one in batches:
        life.saved_at(one)
    return life


def late_start(root, meanwhile, **where):
    fault = Fault(meanwhile, **where)
    life = Life(root, faults=[fault])
    return life, fault


@pytest.mark.parametrize(
    "where",
    [
        {"operations": {"read_into"}, "key": f"checkpoints/{name_at(1, 6)}/*"},
        {"operations": {"read"}, "key": f"checkpoints/{name_at(1, 4)}/COMMIT"},
        {"operations": {"read"}, "key": f"checkpoints/{name_at(1, 4)}/COMMIT", "when": "after"},
    ],
    ids=["while the newest is read", "before the elder is looked at", "after it was looked at"],
)
def test_start_looks_again_when_older_candidates_are_pruned(root, where):
    """Nothing that it knew of is left, and yet not all is corrupt: there is newer."""
    job = running(root, 4, 6)
    corrupt(root, name_at(1, 6))

    def go_on():
        job.saved_at(8)
        job.saved_at(10)

    life, fault = late_start(root, go_on, **where)
    assert life.restore().checkpoint == name_at(1, 10)
    assert fault.fired == 1
    assert committed(root) == [name_at(1, 8), name_at(1, 10)]
    assert attempts(tree(root))[2]["passed_over"] == []
    check_new_start(root, latest=name_at(1, 10))


def test_vanished_candidate_is_skipped_for_next_older(root):
    running(root, 4, 6, 8, keep=9)
    corrupt(root, name_at(1, 8))

    def remove():
        for key in tree(root):
            if name_at(1, 6) in key:
                (root / key).unlink()

    life, fault = late_start(root, remove, operations={"read_into"}, key=f"checkpoints/{name_at(1, 8)}/*")
    assert life.restore().checkpoint == name_at(1, 4)
    assert fault.fired == 1
    assert life.run.digest() == digest_at(4)
    assert [one["checkpoint"] for one in attempts(tree(root))[2]["passed_over"]] == [name_at(1, 8)]


def test_vanished_last_candidate_leaves_corruption_error(root):
    """The newest is corrupt and the only older one vanishes: the start fails, and opens no attempt."""
    running(root, 4, 6)
    corrupt(root, name_at(1, 6))
    fault = Fault(
        lambda: [(root / key).unlink() for key in tree(root) if name_at(1, 4) in key],
        operations={"read_into"},
        key=f"checkpoints/{name_at(1, 6)}/*",
    )
    with pytest.raises(CorruptCheckpointError, match=name_at(1, 6)):
        Life(root, faults=[fault]).restore()
    assert fault.fired == 1
    assert sorted(attempts(tree(root))) == [1]


def test_commit_during_second_candidate_is_chosen(root):
    job = running(root, 4, 6, keep=9)
    corrupt(root, name_at(1, 6))
    life, fault = late_start(
        root, lambda: job.saved_at(8), operations={"read_into"}, key=f"checkpoints/{name_at(1, 4)}/*"
    )
    assert life.restore().checkpoint == name_at(1, 8)
    assert fault.fired == 1
    assert life.run.digest() == digest_at(8)


def test_older_candidates_are_unread_if_newest_is_sound(root):
    running(root, 4, 6, 8, keep=9)
    running(root, 9, 10, keep=9)
    life = Life(root)
    calls = life.calls_of(life.restore)
    commits = {key for call in calls if call.operation == "read" for key in call.keys if key.endswith("COMMIT")}
    assert commits == {f"checkpoints/{name_at(2, 10)}/COMMIT"}
    assert "attempts/000001.json" not in {key for call in calls for key in call.keys}
