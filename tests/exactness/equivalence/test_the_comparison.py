"""The comparison sees one wrong bit, says where it is, and sees a process that began or ended elsewhere."""

import shutil
from dataclasses import replace

import pytest

from exactness.equivalence.chain import Chain
from exactness.equivalence.comparison import Line, assert_continues
from exactness.equivalence.job import MICRO_STEPS, TAMPERED_ACCUMULATOR, TAMPERED_MOMENT, Case, Kill

RESUMED_AT = 5  # with K = 4 the second micro-step of a cycle is next: no update hides or spreads a difference
ENDS = Kill("step_end", RESUMED_AT + 2)


@pytest.mark.parametrize("mode", ["pynative", pytest.param("graph", marks=pytest.mark.extended)])
def test_tampering_is_named(tmp_path, mode):
    """And nothing differs where nothing was tampered with."""
    interrupted = Chain(Case(mode, 4, "Momentum", "conv", "train"), tmp_path)
    interrupted.start(Kill("committed", RESUMED_AT))
    for tampering, leaf, alone in (
        (None, "", False),
        ("moment", TAMPERED_MOMENT, True),
        ("accumulator", TAMPERED_ACCUMULATOR, True),
        ("counter", "counters.cycles", True),
        ("numpy", "rng.numpy", False),
        ("python", "rng.python", False),
        ("batch", "batch", False),
    ):
        folder = tmp_path / f"{tampering}"
        shutil.copytree(interrupted.root, folder / "run")
        resumed = Chain(interrupted.case, folder, interrupted.reference)
        if tampering is None:
            resumed.start(ENDS)
            assert resumed.covered == {("step", RESUMED_AT + 1), ("step", RESUMED_AT + 2)}
            continue
        how_many = "1 leaves" if alone else "[0-9]+ leaves"
        where = f"step at micro-step {RESUMED_AT + 1}: {leaf} is the first of {how_many} that differ: {leaf}"
        # With a batch too few the epoch has an end that ckptkit itself refuses; look before that.
        ends = Kill("step_end", RESUMED_AT + 1) if tampering == "batch" else ENDS
        with pytest.raises(AssertionError, match=where):
            resumed.start(ends, tampering)


CASE = Case("graph", 4, "Momentum", "dense", "train")
REFERENCE = [
    *(Line("step", at, {"batch": f"b{at}", "w": f"w{at}"}) for at in range(1, MICRO_STEPS + 1)),
    Line("end", MICRO_STEPS, {"w": "end"}),
]
KILLED_AT_8 = Kill("step_end", 8)


def trace(first, last, *, begun=5, checkpoint="a000001-c0000000001-m0001"):
    return [Line("resumed", begun, {"checkpoint": checkpoint}), *REFERENCE[first - 1 : last]]


def test_good_traces_pass():
    assert_continues(CASE, REFERENCE, trace(6, 8), KILLED_AT_8, 5)
    assert_continues(CASE, REFERENCE, trace(6, MICRO_STEPS + 1), None, 5)
    assert_continues(CASE, REFERENCE, trace(1, 8, begun=0, checkpoint=None), KILLED_AT_8, 0)
    assert_continues(replace(CASE, traced="after_save"), REFERENCE, trace(6, 7), KILLED_AT_8, 5)
    assert_continues(CASE, REFERENCE, trace(6, 7), Kill("in_update", 8), 5)


@pytest.mark.parametrize(
    ("kill", "broken", "message"),
    [
        (KILLED_AT_8, trace(6, 8, begun=4), "5 are committed, but: resumed at micro-step 4"),
        (KILLED_AT_8, trace(6, 8, checkpoint="a000001-c0000000001-m0002"), "began 5 steps in, from a0.*-m0002"),
        (KILLED_AT_8, trace(6, 8, checkpoint=None), "began 5 steps in, from None"),
        (KILLED_AT_8, trace(5, 8), r"the micro-steps are \[5, 6, 7, 8\]"),
        (KILLED_AT_8, [*trace(6, 6), *REFERENCE[7:8]], r"the micro-steps are \[6, 8\]"),
        (KILLED_AT_8, trace(6, 7), "got to micro-step 7, expected 8"),
        (KILLED_AT_8, [*trace(6, 6), Line("step", 7, {"batch": "b7"})], "micro-step 7: w is the first of 1 leaves"),
        (
            KILLED_AT_8,
            [*trace(6, 6), Line("step", 7, {"batch": "b7", "x": "", "w": ""})],
            "7: w is .* of 2 .*differ: w, x",
        ),
        (KILLED_AT_8, [*trace(6, 8), Line("epoch", 8, {})], "epoch at micro-step 8: the reference never got there"),
        (None, trace(6, MICRO_STEPS - 1), f"ended after micro-step {MICRO_STEPS - 1}"),
        (None, trace(6, MICRO_STEPS), "the last line is not"),
        (None, [*trace(6, MICRO_STEPS), Line("end", MICRO_STEPS, {"w": "other"})], f"end at .*{MICRO_STEPS}: w is"),
    ],
)
def test_broken_traces_are_noticed(kill, broken, message):
    with pytest.raises(AssertionError, match=message):
        assert_continues(CASE, REFERENCE, broken, kill, 5)
