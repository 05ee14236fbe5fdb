"""Opens an attempt for a job of one or many ranks: rank 0 runs the protocol, and the other ranks follow its orders.

On return every rank holds the state of the same checkpoint and the same attempt, or every rank has raised. If a part is
corrupt for one rank, all go back one checkpoint. Ranks above 0 list nothing and choose nothing. The training thread
only, in all ranks at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

from ckptkit import errors
from ckptkit.checkpoint.open import OpenedCheckpoint, read_entry
from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Contents
from ckptkit.core.process_group import World
from ckptkit.core.progress import Progress
from ckptkit.errors import CheckpointNotFoundError, CkptKitError, CorruptCheckpointError, ResumeError
from ckptkit.format.documents import AttemptDocument, Commit, Manifest, RankManifest, StrictModel, decode
from ckptkit.format.layout import CheckpointName, attempt_key
from ckptkit.run.fence import read_if_intact
from ckptkit.snapshot import Capturable
from ckptkit.storage import Storage

_T = TypeVar("_T")


class RankFailure(StrictModel):
    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> RankFailure:
        return cls(kind=type(error).__name__, text=str(error))

    def error(self, rank: int) -> Exception:
        """Return an error of the same class that names ``rank``; a `ResumeError` if ckptkit has no such class."""
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, CkptKitError):
            return kind(f"rank {rank}: {self.text}")
        return ResumeError(f"rank {rank}: {self.kind}: {self.text}")


@dataclass(frozen=True)
class Opened:
    document: AttemptDocument
    contents: Contents | None
    run_id: str = ""


class _Order(StrictModel):
    do: Literal["take", "begin", "go", "stop"]
    home: int = 0
    commit: Commit | None = None
    manifest: Manifest | None = None
    tables: tuple[RankManifest, ...] = ()  # without the state of the ranks: each rank reads its own
    attempt: AttemptDocument | None = None
    failure: RankFailure | None = None


class _Outcome(StrictModel):
    failure: RankFailure | None = None
    progress: Progress | None = None


class Leader:
    """Is rank 0 of a start: every call acts in all ranks, and raises what any rank raised."""

    def __init__(self, world: World, homes: Sequence[Storage], state: Capturable) -> None:
        self._world = world
        self._homes = homes
        self._state = state
        self._is_severed = False  # after a failed call, nothing more is sent to the ranks

    def take(self, storage: Storage, opened: OpenedCheckpoint, report: Callable[[int], None]) -> Contents:
        order = _Order(
            do="take",
            home=next((at for at, home in enumerate(self._homes) if home is storage), 0),
            commit=opened.commit,
            manifest=opened.manifest,
            tables=tuple(document.model_copy(update={"state": {}}) for document in opened.ranks),
        )

        def act() -> Contents:
            contents = load(storage, opened, _home(self._world, opened), report=report)
            self._state.apply(contents)
            return contents

        contents = self._together(order, act)
        assert contents is not None  # noqa: S101 - it was applied
        return contents

    def begin(self, root: str) -> None:
        self._together(_Order(do="begin"), partial(self._state.begin, root))

    def go(self, opened: Opened | Contents) -> None:
        """Tell the other ranks that the attempt is open, if one is; raise if one of them cannot see its document."""
        order = _Order(do="go", attempt=opened.document if isinstance(opened, Opened) else None)
        self._together(order, lambda: None)

    def stop(self, error: BaseException) -> None:
        """Tell the other ranks that the start has failed, if they can still be reached."""
        if not self._is_severed:
            self._world.broadcast(_Order(do="stop", failure=RankFailure.of(error)).model_dump_json())

    def _together(self, order: _Order, act: Callable[[], _T]) -> _T | None:
        self._is_severed = True
        if self._world.size > 1:
            self._world.broadcast(order.model_dump_json())
        result, own, outcomes = _act(self._world, act, self._state)
        self._is_severed = False
        _raise_gravest(own, outcomes, 0)
        for rank, outcome in enumerate(outcomes):
            if outcome.progress != outcomes[0].progress:
                raise ResumeError(
                    f"the ranks do not agree on the position of the run. Rank 0: {outcomes[0].progress}. Rank "
                    f"{rank}: {outcome.progress}. Start every rank with the same script, K and data"
                )
        return result


def lead(
    world: World, homes: Sequence[Storage], state: Capturable, open_it: Callable[[Leader], Opened | Contents]
) -> Opened | Contents:
    """Open an attempt as rank 0; raise what ``open_it`` raises, in every rank."""
    leader = Leader(world, homes, state)
    try:
        opened = open_it(leader)
    except Exception as error:
        leader.stop(error)
        raise
    leader.go(opened)  # outside the `try`: a failure in it already reaches every rank
    return opened


def follow(world: World, homes: Sequence[Storage], state: Capturable) -> Opened | Contents:
    """Follow the orders of rank 0, in any other rank, until the attempt is open."""
    applied: Contents | None = None
    own: BaseException | None = None
    while True:
        order = _Order.model_validate_json(world.broadcast(""))
        if order.do == "go":
            _, own, outcomes = _act(world, partial(_see, homes, order.attempt), state)
            _raise_gravest(own, outcomes, world.rank)
            if order.attempt is None:
                assert applied is not None  # noqa: S101 - what is complete was applied
                return applied
            return Opened(order.attempt, applied)
        if order.do == "stop":
            assert order.failure is not None  # noqa: S101 - as above
            raise order.failure.error(0) from own
        if order.do == "begin":
            applied, own, _ = _act(world, partial(state.begin, homes[0].url), state)
        else:
            applied, own, _ = _act(world, partial(_take, world, homes[order.home], order, state), state)


def _see(homes: Sequence[Storage], attempt: AttemptDocument | None) -> None:
    """Raise ResumeError unless this rank also sees, at each home, the attempt document that rank 0 created, if any."""
    if attempt is None:
        return
    key = attempt_key(attempt.attempt)
    for storage in homes:
        if read_if_intact(storage, key, AttemptDocument) != attempt:
            advice = "mirrors. Give all ranks the same, at one server"
            if storage is homes[0]:
                advice = "roots. Give all ranks one shared root, such as a bucket or a network file system, by an "
                advice += "absolute path"
            raise ResumeError(
                f"rank 0 opened attempt {attempt.attempt} of the run, but {key} at {storage.url} is not that attempt "
                f"for this rank: the ranks have different {advice}"
            )


def _take(world: World, storage: Storage, order: _Order, state: Capturable) -> Contents:
    """Apply this rank's part of the checkpoint that rank 0 opened; its own state is read here."""
    assert order.commit is not None  # noqa: S101 - as in `follow`
    assert order.manifest is not None  # noqa: S101
    name = CheckpointName.parse(order.manifest.checkpoint)
    assert name is not None  # noqa: S101 - rank 0 compared it with the name of the folder
    opened = OpenedCheckpoint(name, order.commit, order.manifest, order.tables)
    home = _home(world, opened)
    file = order.manifest.rank_files[home]
    document = decode(read_entry(storage, name, file), RankManifest, file.key)
    opened = replace(opened, ranks=(*opened.ranks[:home], document, *opened.ranks[home + 1 :]))
    contents = load(storage, opened, home, sizes_known=True)  # rank 0 compared the sizes
    state.apply(contents)
    return contents


def _home(world: World, opened: OpenedCheckpoint) -> int:
    """Return the rank whose part this rank takes; with another world size, that part supplies what no rule can fold."""
    return world.rank % opened.manifest.world_size


def _act(
    world: World, act: Callable[[], _T], state: Capturable
) -> tuple[_T | None, BaseException | None, list[_Outcome]]:
    """Run ``act`` in this rank and gather the outcomes of all; return its result, or its error, and these."""
    result: _T | None = None
    own: BaseException | None = None
    try:
        result = act()
        outcome = _Outcome(progress=state.progress())
    except Exception as error:  # noqa: BLE001 - the other ranks wait for the outcome; the error is raised later
        result, own, outcome = None, error, _Outcome(failure=RankFailure.of(error))
    return result, own, [_Outcome.model_validate_json(text) for text in world.gather(outcome.model_dump_json())]


def _raise_gravest(own: BaseException | None, outcomes: Sequence[_Outcome], me: int) -> None:
    """Raise the failure that decides, if any: first an error after which the protocol tries no other checkpoint."""
    lightness = {CheckpointNotFoundError.__name__: 1, CorruptCheckpointError.__name__: 2}
    failures = [(rank, outcome.failure) for rank, outcome in enumerate(outcomes) if outcome.failure]
    if failures:
        rank, failure = min(failures, key=lambda item: lightness.get(item[1].kind, 0))  # the first of equals
        raise own if rank == me and own is not None else failure.error(rank)
