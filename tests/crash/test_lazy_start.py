"""A start finds its later candidates only when it needs them: what went away meanwhile must not mislead it."""

import pytest
from support.runs.scenario import Life, attempts, check_new_start, committed, corrupt, digest_at, name_at, tree

from ckptkit.run.keep_policy import KeepLatest
from ckptkit.testing.faults import Fault

from .lives import started, taken_away


@pytest.fixture
def root(tmp_path):
    return tmp_path / "run"


def test_start_looks_again_when_older_candidates_are_pruned(tmp_path):
    """Nothing that it knew of is left, and yet not all is corrupt: there is newer."""
    rows = {
        "while the newest is read": {"operations": {"read_into"}, "key": f"checkpoints/{name_at(1, 6)}/*"},
        "before the elder is looked at": {"operations": {"read"}, "key": f"checkpoints/{name_at(1, 4)}/COMMIT"},
        "after": {"operations": {"read"}, "key": f"checkpoints/{name_at(1, 4)}/COMMIT", "when": "after"},
    }
    for when, where in rows.items():
        root = tmp_path / when
        job = started(root, 4, 6)
        corrupt(root, name_at(1, 6))
        fault = Fault(lambda job=job: [job.saved_at(at) for at in (8, 10)], **where)
        life = Life(root, faults=[fault])
        assert life.restore().checkpoint == name_at(1, 10), when
        assert fault.fired == 1
        assert committed(root) == [name_at(1, 8), name_at(1, 10)]
        assert attempts(tree(root))[2]["passed_over"] == []
        check_new_start(root, latest=name_at(1, 10))


def test_vanished_candidate_is_skipped_for_next_older(root):
    started(root, 4, 6, 8, keep=KeepLatest(9))
    corrupt(root, name_at(1, 8))
    fault = Fault(
        lambda: taken_away(root, f"checkpoints/{name_at(1, 6)}"),
        operations={"read_into"},
        key=f"checkpoints/{name_at(1, 8)}/*",
    )
    life = Life(root, faults=[fault])
    assert life.restore().checkpoint == name_at(1, 4)
    assert fault.fired == 1
    assert life.run.digest() == digest_at(4)
    assert [one["checkpoint"] for one in attempts(tree(root))[2]["passed_over"]] == [name_at(1, 8)]


def test_commit_during_second_candidate_is_chosen(root):
    job = started(root, 4, 6, keep=KeepLatest(9))
    corrupt(root, name_at(1, 6))
    fault = Fault(lambda: job.saved_at(8), operations={"read_into"}, key=f"checkpoints/{name_at(1, 4)}/*")
    life = Life(root, faults=[fault])
    assert life.restore().checkpoint == name_at(1, 8)
    assert fault.fired == 1
    assert life.run.digest() == digest_at(8)
