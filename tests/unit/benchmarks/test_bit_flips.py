"""A bit that flips in a live training is found by replay: stretch and leaves, judged by the bytes on storage."""

from pathlib import Path

import pytest

from benchmarks.bit_flips.trial import Flip, Found, Job, TrialError, trained, tried


def trial(folder: Path, job: Job, flip: Flip | None) -> Found:
    """What a replay finds in a training with the flip, against what a clean training stores."""
    return tried(job, folder / "trial", flip, trained(job, folder / "clean" / "training", None))


def test_clean_stretch_is_certified(tmp_path):
    found = trial(tmp_path, Job("numpy", 1), None)
    assert found.is_right
    assert (found.code, found.differing, len(found.equal)) == (0, None, 4)
    with pytest.raises((TrialError, FileNotFoundError)):  # a flip that does not fire is no trial
        trained(Job("numpy", 1), tmp_path / "late", Flip(0, 99, "weights", 0))


@pytest.mark.parametrize(
    ("job", "flip"),
    [
        (Job("numpy", 2), Flip(1, 8, "accumulators", 2 * 32 + 22)),
        pytest.param(Job("mindspore", 1), Flip(0, 8, "moments", 100 * 32 + 20), marks=pytest.mark.extended),
    ],
    ids=str,
)
def test_flipped_bit_names_stretch_and_leaf(tmp_path, job, flip):
    found = trial(tmp_path, job, flip)
    assert not found.has_vanished  # by the bytes on storage, the fault has an effect
    assert found.is_right, found
    assert found.names_the_leaf or job.kind == "mindspore"


def test_wrong_verdicts_are_told_from_right_ones():
    own, others = frozenset({("accumulators", 1)}), frozenset({("accumulators", 0)})
    sound = (Flip(1, 8, "accumulators", 3), "b", own, "b", own, ("a",), ("a",))
    right = Found(*sound, deterministic=True, code=1)
    assert right.is_right
    assert right.names_the_leaf

    def but(**other):
        return Found(**{**vars(right), **other})

    nothing = {"differing": None, "named": frozenset(), "code": 0, "deterministic": None}
    wrong = [nothing, {"differing": "c"}, {"named": others}, {"named": own | others}, {"equal": ()}]
    assert [other for other in (*wrong, {"deterministic": False}, {"code": 0}) if but(**other).is_right] == []
    assert not but(named=others).names_the_leaf
    vanished = but(expected=None, leaves=frozenset(), **nothing)
    assert vanished.has_vanished
    assert vanished.is_right
