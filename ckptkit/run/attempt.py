"""Opens an attempt: chooses a checkpoint, applies it, and fences every earlier start of the run.

The order is the protocol (``docs/format.md``, Starting): list, choose, check the documents, apply, which verifies every
byte; make sure that the applied checkpoint stays; create ``attempts/N+1.json`` with it as parent; list again. So a
wrong model fails before it fences a running job, and of two starts the last one wins.

In a job of many ranks, rank 0 runs the protocol, and the others, which list and choose nothing, follow its orders. On
return every rank holds the state of the same checkpoint and the same attempt, or every rank has raised. If a part is
corrupt for one rank, all go back one checkpoint. The training thread only, in all ranks at the same time, once per
process and run.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import dropwhile, islice
from typing import Literal, TypeVar

from ckptkit import errors
from ckptkit.checkpoint.commit import create_once, list_names, read_commit, read_document, void
from ckptkit.checkpoint.open import OpenedCheckpoint, open_checkpoint, read_entry
from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Contents
from ckptkit.core.process_group import World
from ckptkit.core.progress import Progress
from ckptkit.core.text import listed
from ckptkit.core.waiting import LongWait
from ckptkit.errors import (
    CheckpointNotFoundError,
    CkptKitError,
    CorruptCheckpointError,
    ResumeError,
    StaleAttemptError,
    StorageError,
)
from ckptkit.format.documents import (
    MAX_ATTEMPT,
    AttemptDocument,
    Commit,
    Manifest,
    PassedOver,
    RankManifest,
    RunDocument,
    StrictModel,
    Void,
    decode,
    encode,
)
from ckptkit.format.layout import RUN, CheckpointName, attempt_key, checkpoints_prefix
from ckptkit.format.versions import UNKNOWN, changed
from ckptkit.run.index import Index
from ckptkit.run.ownership import check_fence, read_if_intact, read_run, refuse_emptied, refuse_unfinished
from ckptkit.run.resolve import Choice, choose
from ckptkit.run.takeover import sign_of_life
from ckptkit.snapshot import Capturable
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")
_T = TypeVar("_T")
_ROUNDS = 50  # a lost round means that another process made progress; this many are no coincidence


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


@dataclass(frozen=True)
class Opening:
    checkpoint: str
    rewind: bool
    host: str
    now: Callable[[], datetime]
    new_token: Callable[[], str]
    is_over: Callable[[], bool] = lambda: False


Copies = Callable[[CheckpointName], Sequence[Storage]]


def open_attempt(storage: Storage, opening: Opening, leader: Leader, copies: Copies | None = None) -> Opened | Contents:
    """Open the next attempt of the run at ``storage``."""
    storage.probe()  # fail now, not after gigabytes of reading or an hour of training
    abandoned: set[int] = set()
    copies = copies or (lambda name: [storage])
    run = read_run(storage)  # a newer format raises here, before anything is applied
    for _ in range(_ROUNDS):
        index = Index(storage, ignoring=abandoned)
        refuse_unfinished(storage, index, run)
        choice = choose(index, opening.checkpoint, rewind=opening.rewind)
        if choice.first is None:
            refuse_emptied(storage, run)
        passed_over = list(choice.passed_over)
        try:
            contents = _apply_first(storage, index, choice, leader, abandoned, passed_over, copies)
        except CheckpointNotFoundError:
            if choice.branch is not None:
                raise
            continue  # the retention of a running attempt removed it meanwhile: list again
        living = sign_of_life(storage, index, opening.host, opening.now())
        if living is not None and contents is not None and opening.is_over():
            _warn_of(passed_over, contents, storage.url)
            return contents
        if living and (os.environ.get("CKPTKIT_TAKEOVER") or "warn") != "warn":
            raise ResumeError(
                f"the run {storage.url} belongs to {living}, and CKPTKIT_TAKEOVER refuses to take it over. Stop that "
                "process; if its machine is gone, wait ten minutes; if both are to train, give each its own root."
            )
        run_id = _ensure_run(storage, index, opening)
        if index.highest >= MAX_ATTEMPT:
            raise ResumeError(
                f"the run has attempt {index.highest}, which is the last number of the format; start under another root"
            )
        document = AttemptDocument(
            attempt=index.highest + 1,
            token=opening.new_token(),
            parent=contents.checkpoint if contents else None,
            branch=choice.branch,
            host=opening.host,
            created_at=opening.now().isoformat(),
            passed_over=passed_over[-20:],
        ).sealed()
        parent = CheckpointName.parse(contents.checkpoint) if contents else None
        if not _parent_stays(parent, document.token, copies):
            continue
        data = encode(document)
        if create_once(storage, attempt_key(document.attempt), data) != data:
            continue
        check_fence(storage, document)
        _refuse_replaced(storage, document)
        abandoned.add(document.attempt)
        if _still_newest(storage, abandoned, choice, parent, opening):
            _warn_of(passed_over, contents, storage.url)
            if living:
                _log.warning(
                    "TAKEN OVER FROM A PROCESS THAT MAY BE ALIVE: the run %s belonged to %s, which ends at its next "
                    "save, if it still runs. If both are to train, give each its own root. CKPTKIT_TAKEOVER=refuse "
                    "refuses this.",
                    *(storage.url, living),
                )
            return Opened(document, contents, run_id)
    raise StaleAttemptError(
        f"{_ROUNDS} times in a row another process changed the run {storage.url} while this one was starting. "
        "Make sure that only one job is started on it."
    )


def _refuse_replaced(storage: Storage, attempt: AttemptDocument) -> None:
    """Delete this attempt's document, and raise, if another process already works under its number.

    Where a lease replaces conditional writes (``docs/adr/0003``), this document may have come late and replaced the
    other one. A folder shows it, since it is created after its document, which its process puts back at the next save.
    """
    if list_names(storage, checkpoints_prefix(attempt.attempt)):
        storage.delete([attempt_key(attempt.attempt)])
        raise StaleAttemptError(
            f"another process took over the run {storage.url} while the start of this one was stalled, and has saved "
            "since. This process must stop: the other one continues. Make sure that only one job is started on the run."
        )


def _apply_first(  # noqa: PLR0917
    storage: Storage,
    index: Index,
    choice: Choice,
    leader: Leader,
    ignoring: Collection[int],
    passed_over: list[PassedOver],
    copies: Copies,
) -> Contents | None:
    """Apply the first candidate that can be; add the others to ``passed_over``. None for a fresh start."""
    for name in choice.candidates:
        try:
            return _apply(copies(name), name, index, leader)
        except CorruptCheckpointError as error:
            if choice.branch is not None:
                raise CorruptCheckpointError(
                    f"{error}. The chosen checkpoint {name} cannot be used; name another one, or leave "
                    "checkpoint= out to use the newest good one."
                ) from error
            passed_over.append(PassedOver(checkpoint=str(name), reason=str(error)[:1000]))
        except StorageError as error:
            raise _with_way_on(error, name, choice) from error.__cause__
    if choice.first is not None:
        if choice.branch is None and choose(Index(storage, ignoring)).first != choice.first:
            # The corrupt one was the newest when listed: the others may be gone because newer ones exist now.
            raise CheckpointNotFoundError(f"the newest checkpoint is no longer {choice.first}")
        reasons = listed([f"{passed.checkpoint}: {passed.reason}" for passed in passed_over])
        raise CorruptCheckpointError(
            f"no checkpoint of the run {storage.url} can be used, and starting afresh would lose it. Restore one "
            f"(`ckptkit copy BACKUP ROOT`), or start under another root:{reasons}"
        )
    leader.begin(storage.url)
    return None


def _with_way_on(error: StorageError, name: CheckpointName, choice: Choice) -> StorageError:
    """Add to ``error`` the option that continues from the checkpoint before ``name``, if there is one."""
    older = None
    with contextlib.suppress(CkptKitError):
        older = next(islice(dropwhile(lambda candidate: candidate != name, choice.candidates), 1, None), None)
    if older is None:
        return error
    return StorageError(
        f'{str(error).rstrip(".")}. If the error persists, checkpoint="{older}" continues from the one before {name}, '
        "which stays unchanged."
    )


def _apply(places: Sequence[Storage], name: CheckpointName, index: Index, leader: Leader) -> Contents:
    problems: list[str] = []
    for storage in places:
        try:
            opened = open_checkpoint(storage, name, index.document(name.attempt))
            wait = LongWait(f"restoring {name}", opened.size_bytes_for(0))
            contents = leader.take(storage, opened, wait.advance)
        except CorruptCheckpointError as error:
            if len(places) == 1:
                raise
            problems.append(f"at {storage.url}: {error}")
            continue
        _warn_of_other_libraries(name, opened.manifest.libraries)
        if problems:
            _log.warning("%s is corrupt %s. Its copy at %s is intact and was used.", name, problems[0], storage.url)
        return contents
    if not problems:
        raise CheckpointNotFoundError(f"the checkpoint {name} is not committed, or was removed")
    raise CorruptCheckpointError("; ".join(problems))


def _warn_of_other_libraries(name: CheckpointName, recorded: Mapping[str, str]) -> None:
    for library, before, now in changed(recorded):
        advice = "" if before == UNKNOWN else f". To have them: pip install {library}=={before}"
        _log.warning(
            "%s was written with %s %s, but this is %s: another version may round differently, so the run may not "
            "continue with the same bits%s",
            *(name, library, before, now, advice),
        )


def _ensure_run(storage: Storage, index: Index, opening: Opening) -> str:
    fresh = RunDocument(run_id=opening.new_token(), created_at=opening.now().isoformat()).sealed()
    try:
        try:
            run = read_document(storage, RUN, RunDocument)
        except FileNotFoundError:
            run = decode(create_once(storage, RUN, encode(fresh)), RunDocument, RUN)
    except CorruptCheckpointError as error:
        # The file holds an id and a date. No checkpoint depends on it, so it must not stop the run.
        _log.warning("%s; the run continues, because no checkpoint depends on this file", error)
        return ""
    refuse_unfinished(storage, index, run)  # a copy may have begun after this start read run.json
    return run.run_id


def _parent_stays(parent: CheckpointName | None, token: str, copies: Copies) -> bool:
    """Make the parent survive a power loss before a durable document names it; return False if the parent is gone.

    A local file system shows a COMMIT before its folder is fsynced. Trying to create it as void makes it durable.
    """
    if parent is None:
        return True
    for storage in copies(parent):
        with contextlib.suppress(CorruptCheckpointError):  # the copy that was not applied may be corrupt
            if not storage.is_remote and isinstance(void(storage, parent, token), Void):
                return False
    return True


def _still_newest(
    storage: Storage, own: set[int], choice: Choice, parent: CheckpointName | None, opening: Opening
) -> bool:
    """Whether the choice would be the same now, without regard to the attempts that this start created."""
    if parent is not None and not isinstance(read_commit(storage, parent), Commit):
        return False
    if choice.branch is not None:
        return True
    return choose(Index(storage, ignoring=own), opening.checkpoint, rewind=opening.rewind).first == choice.first


def _warn_of(passed_over: Sequence[PassedOver], contents: Contents | None, url: str) -> None:
    if not passed_over:
        return
    reasons = ((passed.checkpoint, *passed.reason.splitlines()[:1]) for passed in passed_over)
    lines = "\n".join("  passed over {}: {}".format(*reason) for reason in reasons)
    _log.warning(
        "CORRUPT CHECKPOINT: the newest checkpoint could not be used. Training since the previous one is repeated. "
        "`ckptkit verify %s` shows what else is damaged.\n%s\n  continuing from %s",
        *(url, lines, "a fresh start" if contents is None else contents.checkpoint),
    )
