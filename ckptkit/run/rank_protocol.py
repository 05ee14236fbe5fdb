"""Opens an attempt for a job of many ranks: rank 0 runs the protocol, and the others do what it says.

Rank 0's `Leader` stands where the state of a job of one rank does: when the protocol takes a checkpoint, it tells
the others which one, with the tables of all its files, and every rank reads and applies its own part. How that went in
each rank is gathered before the protocol goes on, so that a part that is corrupt for one rank makes all of them go one
checkpoint back, and what one refuses all refuse. Guarantees: on return every rank holds the state of the same
checkpoint and the same attempt, or every rank has raised. Other ranks read no listing and choose nothing. Training
thread only, in all ranks at the same time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

from ckptkit import errors
from ckptkit.checkpoint.open import OpenedCheckpoint, read_entry
from ckptkit.checkpoint.verify import load
from ckptkit.core.contents import Contents
from ckptkit.core.process_group import World
from ckptkit.core.progress import Progress
from ckptkit.errors import CheckpointNotFoundError, CkptKitError, CorruptCheckpointError, ResumeError
from ckptkit.format.documents import (
    MAX_SEALED_BYTES,
    AttemptDocument,
    Commit,
    Manifest,
    RankManifest,
    decode,
    encode,
)
from ckptkit.format.layout import CheckpointName, attempt_key
from ckptkit.run.attempt import Opened, Restorable
from ckptkit.storage import Storage


class Failure(BaseModel):
    """An error on its way to other ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """``error`` as words."""
        return cls(kind=type(error).__name__, text=str(error))

    def error(self, rank: int) -> Exception:
        """It as an error of the same kind that names ``rank``; one of no kind that ckptkit has is a `ResumeError`."""
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, CkptKitError):
            return kind(f"rank {rank}: {self.text}")
        return ResumeError(f"rank {rank}: {self.kind}: {self.text}")


class Counted(Restorable, Protocol):
    """What is led: a state that says where it stands."""

    def progress(self) -> Progress:
        """Where the run stands now."""
        ...


class _Order(BaseModel):
    """What rank 0 tells the others to do next."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    do: Literal["take", "begin", "go", "stop"]
    name: str | None = None
    commit: Commit | None = None
    manifest: Manifest | None = None
    tables: list[RankManifest] = []  # without the ranks' own state: each reads its own
    attempt: AttemptDocument | None = None
    failure: Failure | None = None


class _Outcome(BaseModel):
    """How it went in one rank."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    failure: Failure | None = None
    progress: Progress | None = None


class Leader:
    """Rank 0's `ckptkit.run.attempt.Target`: the states of all ranks.

    Args:
        world: The ranks.
        state: Rank 0's own.
    """

    def __init__(self, world: World, state: Counted) -> None:
        self._world = world
        self._state = state
        self._is_severed = False

    @property
    def rank(self) -> int:
        """As `ckptkit.core.process_group.World`."""
        return self._world.rank

    @property
    def size(self) -> int:
        """As `ckptkit.core.process_group.World`."""
        return self._world.size

    def gather(self, message: str) -> Sequence[str]:
        """As `ckptkit.core.process_group.World`; after one that failed there is nobody to tell anything."""
        self._is_severed = True
        words = self._world.gather(message)
        self._is_severed = False
        return words

    def broadcast(self, message: str) -> str:
        """As `gather`."""
        self._is_severed = True
        said = self._world.broadcast(message)
        self._is_severed = False
        return said

    def take(self, storage: Storage, opened: OpenedCheckpoint, report: Callable[[int], None]) -> Contents:
        """As `ckptkit.run.attempt.Target`."""
        order = _Order(
            do="take",
            name=str(opened.name),
            commit=opened.commit,
            manifest=opened.manifest,
            tables=[one.model_copy(update={"state": {}}) for one in opened.ranks],
        )
        _tell(self, order)
        applied: list[Contents] = []

        def act() -> None:
            contents = load(storage, opened, _home(self, opened), report=report)
            self._state.apply(contents)
            applied.append(contents)

        self._together(act)
        return applied[0]

    def begin(self, root: str) -> None:
        """As `ckptkit.run.attempt.Target`."""
        _tell(self, _Order(do="begin"))
        self._together(functools.partial(self._state.begin, root))

    def go(self, opened: Opened) -> None:
        """Tell the others that the attempt is open; raises if one of them cannot see that."""
        _tell(self, _Order(do="go", attempt=opened.document))
        self._together(lambda: None)

    def stop(self, error: BaseException) -> None:
        """Tell the others that the start has failed, if they can be told anything."""
        if not self._is_severed:
            _tell(self, _Order(do="stop", failure=Failure.of(error)))

    def _together(self, act: Callable[[], None]) -> None:
        own, outcomes = _act(self, act, self._state)
        failures = {rank: one.failure for rank, one in enumerate(outcomes) if one.failure is not None}
        if failures:
            raise _gravest(own, failures, 0)
        for rank, one in enumerate(outcomes):
            if one.progress != outcomes[0].progress:
                raise ResumeError(
                    f"the ranks do not agree where the run stands. Rank 0: {outcomes[0].progress}. Rank {rank}: "
                    f"{one.progress}. Start every rank with the same script, K and data"
                )


def lead(world: World, state: Counted, open_it: Callable[[Leader], Opened]) -> Opened:
    """Open an attempt as rank 0; raises what ``open_it`` does, in every rank.

    Args:
        world: The ranks.
        state: Rank 0's own.
        open_it: Opens the attempt for a `ckptkit.run.attempt.Target`.
    """
    leader = Leader(world, state)
    try:
        opened = open_it(leader)
    except Exception as error:
        leader.stop(error)
        raise
    leader.go(opened)  # last: what goes wrong in it, every rank learns from it
    return opened


def follow(world: World, storage: Storage, state: Counted) -> Opened:
    """Do as rank 0 says, in any other rank, until the attempt is open.

    Raises:
        CkptKitError: What made the start fail, here or in another rank.
    """
    applied: Contents | None = None
    own: BaseException | None = None
    while True:
        order = _Order.model_validate_json(world.broadcast(""))
        if order.do == "go":
            assert order.attempt is not None  # noqa: S101 - rank 0 sends it with this word
            opened = Opened(order.attempt, applied)
            own, outcomes = _act(world, functools.partial(_see, storage, order.attempt), state)
            failures = {rank: one.failure for rank, one in enumerate(outcomes) if one.failure is not None}
            if failures:
                raise _gravest(own, failures, world.rank)
            return opened
        if order.do == "stop":
            assert order.failure is not None  # noqa: S101 - as above
            raise order.failure.error(0) from own
        applied = None
        if order.do == "begin":
            own, _ = _act(world, functools.partial(state.begin, storage.url), state)
            continue
        taken: list[Contents] = []

        def act(order: _Order = order, taken: list[Contents] = taken) -> None:
            opened = _received(storage, order, world)
            contents = load(storage, opened, _home(world, opened), sizes_known=True)  # rank 0 compared them
            state.apply(contents)
            taken.append(contents)

        own, _ = _act(world, act, state)
        applied = taken[0] if taken else None


def _see(storage: Storage, attempt: AttemptDocument) -> None:
    """Raise ResumeError unless the document that rank 0 made is there for this rank, too."""
    key = attempt_key(attempt.attempt)
    try:
        there = storage.read(key, MAX_SEALED_BYTES)
    except FileNotFoundError:
        there = b""
    if there != encode(attempt):
        raise ResumeError(
            f"rank 0 opened attempt {attempt.attempt} of the run, and {key} at {storage.url} is not it for this rank: "
            "the ranks have different roots. Give all of them one that they share, such as a bucket or a network "
            "file system, by an absolute path"
        )


def _received(storage: Storage, order: _Order, world: World) -> OpenedCheckpoint:
    """The checkpoint that rank 0 opened, with the own rank's state, which is read here."""
    name = CheckpointName.parse(order.name or "")
    assert name is not None  # noqa: S101 - as in `follow`
    assert order.commit is not None  # noqa: S101
    assert order.manifest is not None  # noqa: S101
    opened = OpenedCheckpoint(name, order.commit, order.manifest, tuple(order.tables))
    home = _home(world, opened)
    file = order.manifest.rank_files[home]
    full = decode(read_entry(storage, name, file), RankManifest, file.key)
    return replace(opened, ranks=(*opened.ranks[:home], full, *opened.ranks[home + 1 :]))


def _home(world: World, opened: OpenedCheckpoint) -> int:
    """Whose part is this rank's; in a world of another size, whose it takes what no rule can fold from."""
    return world.rank % opened.manifest.world_size


def _tell(world: World, order: _Order) -> None:
    world.broadcast(order.model_dump_json())


def _act(world: World, act: Callable[[], None], state: Counted) -> tuple[BaseException | None, list[_Outcome]]:
    """Do something in this rank as in all others, and learn how it went in each; the own error is not raised."""
    own: BaseException | None = None
    try:
        act()
        mine = _Outcome(progress=state.progress())
    except Exception as error:  # noqa: BLE001 - the others wait for the word, whatever it is; it is raised later
        own, mine = error, _Outcome(failure=Failure.of(error))
    return own, [_Outcome.model_validate_json(one) for one in world.gather(mine.model_dump_json())]


def _gravest(own: BaseException | None, failures: dict[int, Failure], me: int) -> BaseException:
    """Of what went wrong in several ranks, what decides: anything, before a removed one, before a corrupt one.

    After a corrupt or a removed checkpoint the protocol tries another, which must not hide what ends a start.
    """
    ranked = sorted(failures.items(), key=lambda item: (_lightness(item[1]), item[0]))
    rank, failure = ranked[0]
    return own if rank == me and own is not None else failure.error(rank)


def _lightness(failure: Failure) -> int:
    return {CheckpointNotFoundError.__name__: 1, CorruptCheckpointError.__name__: 2}.get(failure.kind, 0)
