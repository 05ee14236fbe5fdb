"""Choosing lazily, from any kind of look, gives what choosing from everything read beforehand gave."""

from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.runs.dict_storage import Counted, DictStorage
from support.runs.long_run import long_run, names_of

from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.format.documents import AttemptDocument, Commit, PassedOver, Void, encode
from ckptkit.format.layout import CheckpointName, attempt_key
from ckptkit.run.catalog import latest_checkpoint, list_checkpoints
from ckptkit.run.index import VOID_BYTES, Index, Lineage, Survey, commit_bytes
from ckptkit.run.resolve import choose
from ckptkit.testing.faults import Fault

TOKEN = "0" * 32
REAL = encode(Commit(token=TOKEN, manifest_digest=TOKEN, manifest_size_bytes=9).sealed())
VOID = encode(Void(void_by=TOKEN))
FOREIGN = encode(Commit(token="f" * 32, manifest_digest=TOKEN, manifest_size_bytes=9).sealed())
COMMITS = {
    **{"none": None, "void": VOID, "real": REAL, "foreign": FOREIGN},
    **{"cut": REAL[:-2], "of a void's size": REAL[:VOID_BYTES]},
}

NAME = st.builds(CheckpointName, st.integers(1, 5), st.integers(0, 2), st.just(0), st.integers(1, 2))
DOCUMENT = st.one_of(st.just("absent"), st.just("corrupt"), st.none(), NAME.map(str))


@dataclass(frozen=True)
class Made:
    """A run of documents and markers only."""

    attempts: dict[int, str | None]
    branches: dict[int, str]
    folders: dict[CheckpointName, str]
    unsure: frozenset[int]  # attempts that passed something over

    def storage(self) -> DictStorage:
        files = {}
        for number, parent in self.attempts.items():
            if parent == "corrupt":
                files[attempt_key(number)] = b"{}"
            elif parent != "absent":
                branch = self.branches.get(number)
                over = [PassedOver(checkpoint="", reason="")] if number in self.unsure else []
                document = AttemptDocument(
                    attempt=number, token=TOKEN, parent=parent, branch=branch, host="", created_at="", passed_over=over
                )
                files[attempt_key(number)] = encode(document.sealed())
        for name, kind in self.folders.items():
            if kind != "void alone":
                files[name.manifest_key] = b"{}"
            commit = COMMITS[kind.removesuffix(" alone")]
            if commit is not None:
                files[name.commit_key] = commit
        return DictStorage(files)


RUNS = st.builds(
    Made,
    st.dictionaries(st.integers(1, 5), DOCUMENT),
    st.dictionaries(st.integers(1, 5), NAME.map(str)),
    st.dictionaries(NAME, st.sampled_from([*COMMITS, "void alone", "real", "real"]), max_size=9),
    st.frozensets(st.integers(1, 5)),
)


class Eager:
    """A run of which everything is read first; chooses by the text of the protocol."""

    def __init__(self, made: Made) -> None:
        self.made, self.index, self.passed_over = made, Index(made.storage()), set()
        self.committed = [name for name in self.index.names if self.index.is_committed(name)]
        self.numbers = sorted({*self.index.attempts, *(name.attempt for name in self.committed)}, reverse=True)
        unreadable = ("absent", "corrupt")
        self.readable = [number for number in self.numbers if made.attempts.get(number, "absent") not in unreadable]
        if not self.index.names:
            self.numbers = [number for number in self.numbers if number >= max(self.readable, default=0)]
        foreign = [name for name in self.committed if made.folders[name] == "foreign"]
        self.foreign = {name for name in foreign if name.attempt in self.readable}
        self.with_commits = {name.attempt for name in self.committed if name not in self.foreign}

    def choose(self):
        head = self._head()
        if head is not None:
            return [str(name) for name in head[1]], str(head[2]), self.passed_over
        if self.committed:
            raise CorruptCheckpointError("orphans")
        if self.readable and self.made.attempts[self.readable[0]] is not None:
            raise CorruptCheckpointError("emptied")
        return [], None, self.passed_over

    def _head(self):
        """The lineage of the newest that counts, all commits on it, and the first of them that is its own."""
        head = self._by_commits()
        newer = self.numbers if head is None else self.numbers[: self.numbers.index(head[0].segments[0].attempt)]
        for attempt in (number for number in newer if number not in self.with_commits):
            if not Lineage(self.index, attempt).whole().segments:
                self.passed_over.add(attempt_key(attempt))
                continue
            parent, branch = self.made.attempts[attempt], self.made.branches.get(attempt)
            is_missing = parent not in (None, *map(str, self.committed))
            if branch is not None and parent is not None and not is_missing:
                return self._at(attempt) or head
            is_newer = is_missing and head is not None and CheckpointName.parse(parent) > head[2]
            if (branch is not None and parent is not None) or is_newer:
                self.passed_over.add(attempt_key(attempt))
            if parent == (str(head[2]) if head else None) and attempt not in self.made.unsure:
                break  # it has looked at those before it
        return head

    def _by_commits(self):
        for attempt in self.numbers:
            if attempt not in self.with_commits:
                self.passed_over |= {str(name) for name in self.committed if name.attempt == attempt}
            elif head := self._at(attempt):
                return head
        return None

    def _at(self, attempt):
        lineage = Lineage(self.index, attempt).whole()
        on_it = [name for segment in lineage.segments for name in reversed(self.committed) if name in segment]
        if self.foreign.issuperset(on_it):
            broken = {attempt_key(lineage.broken_at)} if lineage.broken_at is not None else set()
            self.passed_over |= broken | set(map(str, on_it))
            return None
        return lineage, on_it, next(name for name in on_it if name not in self.foreign)


def outcome(function):
    try:
        return function()
    except CorruptCheckpointError as error:
        return type(error)


def described(choice):
    names = [str(name) for name in choice.candidates]
    assert [str(name) for name in choice.candidates] == names
    return names, str(choice.first) if choice.first else None, {item.checkpoint for item in choice.passed_over}


OLDER, NEWER, OF_OTHERS = (CheckpointName(attempt, 1, 0, 1) for attempt in (1, 2, 3))
OVERTAKEN = Made(
    {1: None, 2: str(OLDER), 3: str(OLDER)}, {}, {OLDER: "real", NEWER: "real", OF_OTHERS: "foreign"}, frozenset()
)


@settings(max_examples=300)
@example(OVERTAKEN)
@given(RUNS)
def test_what_is_chosen_is_what_the_protocol_says(made):
    storage = made.storage()
    expected = outcome(Eager(made).choose)
    for view in (Index, Survey):
        assert outcome(lambda view=view: described(choose(view(storage)))) == expected


TOKENS = st.text("0123456789abcdef", min_size=32, max_size=32)


@given(TOKENS, TOKENS, st.integers(0, 1 << 50))
def test_size_distinguishes_void_marker_from_commit(token, digest, size_bytes):
    commit = Commit(token=token, manifest_digest=digest, manifest_size_bytes=size_bytes).sealed()
    assert len(encode(Void(void_by=token))) == VOID_BYTES < len(encode(commit)) == commit_bytes(size_bytes)


def test_unreadable_document_is_read_again():
    """An error is no answer: it must not end a lineage for good."""
    storage = Counted(long_run(1, 1))
    lineage = Lineage(Index(storage), 2)
    storage.inject(Fault("error", operations={"read"}, key="attempts/000001.json"))
    with pytest.raises(StorageError):
        list(lineage)
    assert [segment.attempt for segment in lineage] == [2, 1]
    assert lineage.broken is None


def test_checkpoint_that_goes_meanwhile_is_no_damage():
    def remove():
        storage._inner.files = {key: data for key, data in storage._inner.files.items() if newest not in key}

    for read in (list_checkpoints, latest_checkpoint):
        storage = Counted(long_run(3))
        newest, before = names_of(storage._inner)[:-3:-1]
        fault = storage.inject(Fault(remove, operations={"read"}, key=f"*/{newest}/manifest.json"))
        told = read(storage)
        assert fault.fired == 1
        if read is list_checkpoints:
            assert {info.name: info.problem for info in told} == dict.fromkeys(names_of(storage._inner))
        else:
            assert told.name == before


def lineage_of(parents, newest):
    return Lineage(Index(Made(parents, {}, {}, frozenset()).storage()), newest).whole()


A2C9, A3C7 = str(CheckpointName(2, 9, 0)), str(CheckpointName(3, 7, 0))


def test_broken_lineage_names_break_and_keeps_rest():
    for parents, newest, attempts, message in [
        ({3: A2C9, 1: None}, 3, [3], "attempts/000002.json is missing"),
        ({2: A2C9}, 2, [], "000002.json names the parent 'a000002-c0000000009-m0000'"),
        ({2: A3C7, 3: A2C9}, 3, [3], "000002.json names the parent 'a000003-c0000000007-m0000'"),
        ({2: "x" * 4000}, 2, [], "which is not a checkpoint of an earlier attempt"),
    ]:
        lineage = lineage_of(parents, newest)
        assert [segment.attempt for segment in lineage.segments] == attempts, parents
        assert newest - len(attempts) == lineage.broken_at
        assert isinstance(lineage.broken, CorruptCheckpointError)
        assert message in str(lineage.broken)
        assert len(str(lineage.broken)) < 300


PARENT = st.one_of(
    st.none(),
    st.builds(CheckpointName, st.integers(1, 8), st.integers(0, 3), st.integers(0, 1), st.integers(1, 2)).map(str),
    st.just("nonsense"),
)


@given(st.dictionaries(st.integers(1, 8), PARENT), st.integers(1, 8))
def test_lineage_walk_ends_for_any_documents(parents, newest):
    lineage = lineage_of(parents, newest)
    walked = [segment.attempt for segment in lineage.segments]
    # The attempt at a break was looked at, too, but nothing of it can be checked.
    looked_at = [*walked, *([lineage.broken_at] if lineage.broken_at is not None else [])]
    assert looked_at[0] == newest
    assert looked_at == sorted(set(looked_at), reverse=True)
    assert (lineage.broken is None) == (lineage.broken_at is None)
    assert (lineage.broken is None) == (looked_at[-1] in parents and parents[looked_at[-1]] is None)
    for upper, lower in zip(lineage.segments, lineage.segments[1:], strict=False):
        assert str(lower.last) == parents[upper.attempt]
    limits = {segment.attempt: segment.last for segment in lineage.segments}  # the newest attempt has none
    for name in (CheckpointName(attempt, 2, micro_step) for attempt in range(1, 9) for micro_step in (0, 1)):
        limit = limits.get(name.attempt)
        assert (name in lineage) == (name.attempt in limits and (limit is None or name <= limit))
    assert all(limit in lineage for limit in limits.values() if limit is not None)
