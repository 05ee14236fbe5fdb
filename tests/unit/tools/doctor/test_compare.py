"""The first thing that differs is found, and nothing else is called different."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.doctor_lives import NAMES, life, stepped

from ckptkit.tools.doctor.compare import begun_too_early, differing, first_difference, other_losses, unstable
from ckptkit.tools.doctor.lives.trace import Stepped

LAST = 12


def healthy(begun: int = 0) -> list[Stepped]:
    return [stepped(step) for step in range(begun + 1, LAST + 1)]


def altered(line: Stepped, name: str) -> Stepped:
    return line.model_copy(update={"digests": {**line.digests, name: "another"}})


@given(st.integers(0, LAST - 1))
def test_equal_lives_do_not_differ_wherever_one_begins(begun):
    assert first_difference(life(healthy(begun), begun=begun), life(healthy()), LAST) is None


@given(st.data())
def test_the_earliest_altered_digest_is_found_and_named(data):
    begun = data.draw(st.integers(0, LAST - 1))
    wrong = data.draw(st.dictionaries(st.integers(begun + 1, LAST), st.sampled_from(NAMES), min_size=1))
    lines = [altered(line, wrong[line.step]) if line.step in wrong else line for line in healthy(begun)]
    found = first_difference(life(lines, begun=begun), life(healthy()), LAST)
    if set(wrong.values()) == {"loss"}:
        assert found is None
        assert other_losses(life(lines, begun=begun), life(healthy()), LAST) == sorted(wrong)
        return
    assert found is not None
    assert (found.step, found.names, found.resumed_at) == (min(wrong), (wrong[min(wrong)],), begun)


def test_life_that_does_again_what_its_checkpoint_held_differs():
    """Also if the checkpoint is of the last micro-step, after which nothing is left to do."""
    for begun in (3, LAST):
        assert begun_too_early(life(healthy(begun), begun=begun), life(healthy()), begun) is None
        found = begun_too_early(life(healthy(2), begun=2), life(healthy()), begun)
        assert (found.step, found.names, found.found) == (min(begun + 1, LAST), (), None)


def test_a_name_that_one_of_them_lacks_differs():
    assert differing({"loss": "1"}, {"loss": "1", "weights/w": "2"}) == ["weights/w"]
    assert differing({"loss": "1", "weights/w": "2"}, {"loss": "1"}) == ["weights/w"]
    names = [*NAMES, "named/a", "told/a"]
    assert differing(dict.fromkeys(reversed(names), "one"), dict.fromkeys(names, "other")) == names, "causes come first"


def test_shorter_life_differs_at_its_end():
    lines = [*healthy()[:5], altered(healthy()[5], "rng/numpy"), *healthy()[6:8]]
    for step, shorter in (
        (6, life(healthy()[:5])),
        (6, life(healthy(6), begun=5)),  # it leaves out its first micro-step
    ):
        found = first_difference(shorter, life(healthy()), LAST)
        assert (found.step, found.names, found.found) == (step, (), None)
    found = first_difference(life(lines), life(healthy()), LAST)
    assert (found.step, found.names) == (6, ("rng/numpy",)), "it comes before the early end"


def test_loss_alone_counts_unless_it_is_rounded():
    """Gradients are equal, so a forgotten counter scales a part of the loss that has none."""
    rows = (("1.25", "1.2500001", True), ("4.296", "2.082", False), ("nan", "1.0", False), ("1f2e", "3d4c", True))
    for expected, found, rounds in rows:
        one, other = (life([stepped(1, loss=value)]) for value in (found, expected))
        assert (first_difference(one, other, 1) is None) == rounds, expected
        assert other_losses(one, other, 1) == [1] * rounds, expected


def test_unseen_values_are_unstable_but_no_difference():
    """Unseen values that disagree are no difference, but the unstable ones are reported."""
    one = life([stepped(1, {"clock": "3", "level": "1"}), stepped(2, {"level": "1", "late": "1"})])
    other = life([stepped(1, {"clock": "4", "level": "1"}), stepped(2, {"level": "1"})])
    assert first_difference(one, other, 2) is None
    assert unstable(one, other) == {"clock", "late"}
