from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import AttemptDocument
from ckptkit.format.layout import CheckpointName, attempt_key
from ckptkit.run.index import Lineage


class Attempts:
    """Attempt documents in a dict; one that is not there is corrupt."""

    def __init__(self, parents: dict[int, str | None]) -> None:
        self._parents = parents
        self.asked: list[int] = []

    def document(self, attempt: int) -> AttemptDocument:
        self.asked.append(attempt)
        if attempt not in self._parents:
            raise CorruptCheckpointError(f"{attempt_key(attempt)} is missing")
        parent = self._parents[attempt]
        return AttemptDocument(attempt=attempt, token="0" * 32, parent=parent, host="host", created_at="now")


def named(attempt: int, cycles: int, micro_step: int = 0, nth_try: int = 1) -> CheckpointName:
    return CheckpointName(attempt, cycles, micro_step, nth_try)


A1C5, A2C9, A3C7 = str(named(1, 5)), str(named(2, 9)), str(named(3, 7))


def test_broken_lineage_names_break_and_keeps_rest():
    for parents, newest, attempts, message in [
        ({1: None}, 2, [], "attempts/000002.json is missing"),
        ({3: A2C9, 1: None}, 3, [3], "attempts/000002.json is missing"),
        ({2: A2C9}, 2, [], "000002.json names the parent 'a000002-c0000000009-m0000'"),
        ({2: A3C7, 3: A2C9}, 3, [3], "000002.json names the parent 'a000003-c0000000007-m0000'"),
        ({2: ""}, 2, [], "000002.json names the parent ''"),
        ({2: "a000001-c0000000005-m0000 "}, 2, [], "which is not a checkpoint of an earlier attempt"),
        ({2: "x" * 4000}, 2, [], "which is not a checkpoint of an earlier attempt"),
    ]:
        lineage = Lineage(Attempts(parents), newest).whole()
        assert [segment.attempt for segment in lineage.segments] == attempts, parents
        assert newest - len(attempts) == lineage.broken_at
        assert isinstance(lineage.broken, CorruptCheckpointError)
        assert message in str(lineage.broken)
        assert len(str(lineage.broken)) < 300


PARENT = st.one_of(
    st.none(),
    st.builds(named, st.integers(1, 8), st.integers(0, 3), st.integers(0, 1), st.integers(1, 2)).map(str),
    st.just("nonsense"),
)


@given(st.dictionaries(st.integers(1, 8), PARENT), st.integers(1, 8))
def test_lineage_walk_ends_for_any_documents(parents, newest):
    attempts = Attempts(parents)
    lineage = Lineage(attempts, newest).whole()
    walked = [segment.attempt for segment in lineage.segments]
    # The attempt at a break was looked at, too, but nothing of it can be checked.
    looked_at = [*walked, *([lineage.broken_at] if lineage.broken_at is not None else [])]
    assert looked_at[0] == newest
    assert looked_at == sorted(set(looked_at), reverse=True) == attempts.asked
    assert (lineage.broken is None) == (lineage.broken_at is None)
    assert (lineage.broken is None) == (looked_at[-1] in parents and parents[looked_at[-1]] is None)
    for upper, lower in zip(lineage.segments, lineage.segments[1:], strict=False):
        assert str(lower.last) == parents[upper.attempt]
    limits = {segment.attempt: segment.last for segment in lineage.segments}  # the newest attempt has none
    for name in (named(attempt, 2, micro_step) for attempt in range(1, 9) for micro_step in (0, 1)):
        limit = limits.get(name.attempt)
        assert (name in lineage) == (name.attempt in limits and (limit is None or name <= limit))
    assert all(limit in lineage for limit in limits.values() if limit is not None)
