"""A bit that flips in a live training is found by replay: stretch and leaves, judged by the bytes on storage."""

from __future__ import annotations

import pytest

from benchmarks.bit_flips.trial import Flip, Found, Job, TrialError, trained, tried


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """What a clean training stores, by job."""
    stored = {}

    def of(job):
        if job not in stored:
            stored[job] = trained(job, tmp_path_factory.mktemp("clean") / "training", None)
        return stored[job]

    return of


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_clean_stretch_is_certified(tmp_path, clean, ranks):
    found = tried(Job("numpy", ranks), tmp_path / "trial", None, clean(Job("numpy", ranks)))
    assert found.is_right
    assert (found.code, found.differing, len(found.equal)) == (0, None, 4)


@pytest.mark.parametrize(
    ("ranks", "flip"),
    [
        (2, Flip(1, 8, "accumulators", 2 * 32 + 22)),
        pytest.param(1, Flip(0, 11, "moments", 32 + 3), marks=pytest.mark.extended),
        pytest.param(1, Flip(0, 14, "weights", 30), marks=pytest.mark.extended),
        pytest.param(2, Flip(0, 9, "weights", 4 * 32 + 1), marks=pytest.mark.extended),
        pytest.param(2, Flip(1, 17, "moments", 3 * 32 + 12), marks=pytest.mark.extended),
    ],
    ids=str,
)
def test_flipped_bit_names_stretch_and_leaf(tmp_path, clean, ranks, flip):
    found = tried(Job("numpy", ranks), tmp_path / "trial", flip, clean(Job("numpy", ranks)))
    assert not found.has_vanished  # by the bytes on storage, the fault has an effect
    assert found.is_right, found
    assert found.names_the_leaf


@pytest.mark.extended
@pytest.mark.parametrize(
    ("ranks", "flip"), [(1, Flip(0, 8, "moments", 100 * 32 + 20)), (2, Flip(1, 11, "weights", 700))]
)
def test_flipped_bit_in_mindspore_names_stretch_and_leaf(tmp_path, clean, ranks, flip):
    found = tried(Job("mindspore", ranks), tmp_path / "trial", flip, clean(Job("mindspore", ranks)))
    assert not found.has_vanished
    assert found.is_right, found


def test_flip_that_does_not_fire_is_no_trial(tmp_path):
    with pytest.raises((TrialError, FileNotFoundError)):
        trained(Job("numpy", 1), tmp_path / "trial", Flip(0, 99, "weights", 0))


def test_wrong_verdicts_are_told_from_right_ones():
    flip = Flip(1, 8, "accumulators", 3)
    own = frozenset({("accumulators", 1)})
    right = Found(flip, "b", own, "b", own, ("a",), ("a",), deterministic=True, code=1)
    assert right.is_right
    assert right.names_the_leaf

    def but(**other):
        return Found(**{**vars(right), **other})

    others = frozenset({("accumulators", 0)})
    for wrong in (
        but(differing=None, named=frozenset(), code=0, deterministic=None),
        but(differing="c"),
        but(named=others),
        but(named=own | others),
        but(equal=()),
        but(deterministic=False),
        but(code=0),
    ):
        assert not wrong.is_right
    assert not but(named=others).names_the_leaf
    vanished = but(expected=None, leaves=frozenset(), differing=None, named=frozenset(), code=0, deterministic=None)
    assert vanished.has_vanished
    assert vanished.is_right
