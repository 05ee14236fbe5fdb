"""Choosing lazily, from any kind of look, gives what choosing from everything read beforehand gave."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.runs.dict_storage import Counted, DictStorage
from support.runs.long_run import long_run, names_of

from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, StorageError
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


@dataclass
class Eager:
    """A run of which everything was read first."""

    made: Made
    index: Index
    passed_over: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        index, made = self.index, self.made
        self.committed = [name for name in index.names if index.is_committed(name)]
        self.numbers = sorted({*index.attempts, *(name.attempt for name in self.committed)}, reverse=True)
        unreadable = ("absent", "corrupt")
        self.readable = [item for item in self.numbers if made.attempts.get(item, "absent") not in unreadable]
        if not index.names:
            self.numbers = [number for number in self.numbers if number >= max(self.readable, default=0)]
        kinds = made.folders
        self.foreign = {item for item in self.committed if kinds[item] == "foreign" and item.attempt in self.readable}
        self.with_commits = {name.attempt for name in self.committed if name not in self.foreign}

    def head(self):
        """The lineage of the newest that counts, all commits on it, and the first of them that is its own."""
        head = self._by_commits()
        newer = self.numbers if head is None else self.numbers[: self.numbers.index(head[0].segments[0].attempt)]
        for attempt in newer:
            if attempt in self.with_commits:
                continue
            own = Lineage(self.index, attempt).whole()
            if not own.segments:
                self.passed_over.setdefault(attempt_key(attempt), str(own.broken))
                continue
            parent = self.made.attempts[attempt]
            branch = self.made.branches.get(attempt)
            if branch is not None and parent in map(str, self.committed):
                return self._at(attempt) or head
            if branch is not None and parent is not None:
                reason = f"it went back to {branch}, which is missing"
                self.passed_over.setdefault(attempt_key(attempt), reason)
            elif parent not in (None, *map(str, self.committed)) and head and CheckpointName.parse(parent) > head[2]:
                reason = f"it continued from {parent}, which is newer than the checkpoints here and is missing"
                self.passed_over.setdefault(attempt_key(attempt), reason)
            if parent == (str(head[2]) if head else None) and attempt not in self.made.unsure:
                break  # it has looked at those before it
        return head

    def _by_commits(self):
        for attempt in self.numbers:
            if attempt not in self.with_commits:
                self._leave_aside(name for name in reversed(self.committed) if name.attempt == attempt)
            elif head := self._at(attempt):
                return head
        return None

    def _at(self, attempt):
        lineage = Lineage(self.index, attempt).whole()
        on_it = [name for segment in lineage.segments for name in reversed(self.committed) if name in segment]
        if self.foreign.issuperset(on_it):
            if lineage.broken_at is not None:
                self.passed_over.setdefault(attempt_key(lineage.broken_at), str(lineage.broken))
            self._leave_aside(on_it)
            return None
        return lineage, on_it, next(name for name in on_it if name not in self.foreign)

    def _leave_aside(self, names):
        for name in names:
            reason = f"its COMMIT has another token than {attempt_key(name.attempt)}"
            self.passed_over.setdefault(str(name), reason)


def eagerly(made: Made, checkpoint: str, rewind: bool):
    """The choice by the text of the protocol."""
    run = Eager(made, Index(made.storage()))
    head = run.head()
    grown, hidden = went_on(made, head, checkpoint, run.readable) if head and checkpoint != "latest" else (False, False)
    if checkpoint != "latest" and (rewind or not grown):
        if checkpoint not in map(str, run.committed):
            raise CheckpointNotFoundError(checkpoint)
        if not rewind and hidden:
            raise CorruptCheckpointError("it is unknown whether it already continued from there")
        return [checkpoint], checkpoint, checkpoint, {} if rewind else run.passed_over
    if head is not None:
        return [str(name) for name in head[1]], str(head[2]), None, run.passed_over
    if run.committed:
        raise CorruptCheckpointError("orphans")
    if run.readable and made.attempts[run.readable[0]] is not None:
        raise CorruptCheckpointError("emptied")
    return [], None, None, run.passed_over


def went_on(made, head, checkpoint, readable):
    """Whether the head began at what had been named before; and whether a document hides that."""
    at = CheckpointName.parse(checkpoint).attempt
    if (head[0].broken_at or 0) > at:
        return False, True
    began = [item.attempt for item in head[0].segments if made.attempts[item.attempt] == checkpoint]
    between = [number for number in made.attempts if began and at < number <= began[0]]
    if any(made.branches.get(number) == checkpoint for number in between if number in readable):
        return True, False
    return False, any(made.attempts[number] == "corrupt" for number in between)


def outcome(function):
    try:
        return function()
    except (CheckpointNotFoundError, CorruptCheckpointError) as error:
        return type(error)


def described(choice):
    names = [str(name) for name in choice.candidates]
    assert [str(name) for name in choice.candidates] == names
    return (
        names,
        str(choice.first) if choice.first else None,
        choice.branch,
        {item.checkpoint: item.reason for item in choice.passed_over},
    )


OLDER, NEWER, OF_OTHERS = (CheckpointName(attempt, 1, 0, 1) for attempt in (1, 2, 3))
OVERTAKEN = Made(
    {1: None, 2: str(OLDER), 3: str(OLDER)}, {}, {OLDER: "real", NEWER: "real", OF_OTHERS: "foreign"}, frozenset()
)


@settings(max_examples=300)
@example(OVERTAKEN, "latest", False)
@given(RUNS, st.one_of(st.just("latest"), NAME.map(str)), st.booleans())
def test_what_is_chosen_is_what_the_protocol_says(made, checkpoint, rewind):
    storage = made.storage()
    expected = outcome(lambda: eagerly(made, checkpoint, rewind))
    for view in (Index, Survey):
        chosen = outcome(lambda view=view: described(choose(view(storage), checkpoint, rewind=rewind)))
        assert chosen == expected


@settings(max_examples=300)
@given(RUNS)
def test_survey_takes_for_committed_what_reading_does(made):
    storage = made.storage()
    index, survey = Index(storage), Survey(storage)
    assert survey.names == index.names
    assert [survey.is_committed(name) for name in index.names] == [index.is_committed(name) for name in index.names]


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


@pytest.mark.parametrize("what", ["COMMIT", "manifest.json", "rank-00000.json"])
def test_checkpoint_that_goes_meanwhile_is_no_damage(what):
    reads = [list_checkpoints, *([latest_checkpoint] if what == "manifest.json" else [])]
    for read in reads:
        storage = Counted(long_run(3))
        newest, before = names_of(storage._inner)[:-3:-1]

        def remove(storage=storage, newest=newest):
            files = storage._inner.files
            storage._inner.files = {key: data for key, data in files.items() if newest not in key}

        fault = storage.inject(Fault(remove, operations={"read"}, key=f"*/{newest}/{what}"))
        described = read(storage)
        assert fault.fired == 1
        if read is list_checkpoints:
            assert {info.name: info.problem for info in described} == dict.fromkeys(names_of(storage._inner))
        else:
            assert described.name == before


def test_latest_reports_problem_of_commit_or_manifest():
    made = long_run(2)
    name = CheckpointName.parse(names_of(made)[-1])
    for key in (name.commit_key, name.manifest_key):
        storage = made.copy()
        data = bytearray(storage.files[key])
        data[len(data) // 2] ^= 1
        storage.files[key] = bytes(data)
        latest = latest_checkpoint(storage)
        assert latest.name == str(name)
        assert key in latest.problem
