"""Opens an attempt: chooses a checkpoint, applies it, and fences every earlier start of the run.

The order is the protocol: list, choose, read, verify, apply; make sure that what was really applied stays; create
``attempts/N+1.json`` with that as parent; list again. So a wrong model fails before it fences a running job, and of two
starts the last one wins. Guarantees: the returned attempt's parent is exactly what the target holds, and no newer
commit was on its lineage when it opened. Training thread only, once per process and run.

What an attempt is opened for: a training state, here or in all ranks of a job, that takes a checkpoint over.
Guarantees nothing by itself. Training thread only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import dropwhile, islice
from typing import Protocol

from ckptkit.checkpoint.commit import create_once, void
from ckptkit.checkpoint.listing import list_names
from ckptkit.checkpoint.open import OpenedCheckpoint, committed, open_checkpoint
from ckptkit.checkpoint.verify import load
from ckptkit.core.contents import Contents
from ckptkit.core.progress_bar import LongWait
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
    MAX_SEALED_BYTES,
    AttemptDocument,
    PassedOver,
    RunDocument,
    Void,
    decode,
    encode,
)
from ckptkit.format.layout import RUN, CheckpointName, attempt_key, checkpoints_prefix
from ckptkit.format.versions import UNKNOWN, changed
from ckptkit.run.fence import check_fence
from ckptkit.run.index import Index
from ckptkit.run.origin import read_run, refuse_emptied, refuse_unfinished
from ckptkit.run.resolve import Choice, choose, first_choice
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")
_ROUNDS = 50  # each round lost means that somebody else made progress; nobody loses that often by chance


@dataclass(frozen=True)
class Applied:
    """The outcome of trying the candidates of a choice."""

    contents: Contents | None
    passed_over: tuple[PassedOver, ...]


@dataclass(frozen=True)
class Opening:
    """How to open an attempt.

    Attributes:
        checkpoint: ``"latest"`` or a name.
        rewind: Go back to the named one even if the run already grew from it.
        host: Told to others in messages.
        now: The clock; for people, never for ordering.
        new_token: Gives 32 fresh random hexadecimal digits.
    """

    checkpoint: str
    rewind: bool
    host: str
    now: Callable[[], datetime]
    new_token: Callable[[], str]


@dataclass(frozen=True)
class Opened:
    """An attempt that owns the run, and what it started from.

    Attributes:
        document: Its own.
        contents: Of the checkpoint that was applied; None for a fresh start.
        run_id: That of ``run.json``; empty where that cannot be read, and in ranks above 0.
    """

    document: AttemptDocument
    contents: Contents | None
    run_id: str = ""


Copies = Callable[[CheckpointName], Sequence[Storage]]


def open_attempt(storage: Storage, opening: Opening, target: Target, copies: Copies | None = None) -> Opened:
    """Open the next attempt of the run at ``storage``.

    Args:
        storage: The run root.
        opening: How.
        target: Takes over the contents of a checkpoint, or begins afresh; may be asked several times.
        copies: Where a checkpoint lies, in the order in which to try its copies; default: at ``storage`` alone.

    Raises:
        ResumeError: If ``target`` refuses, the run has no attempt number left, or is a copy that has not ended.
        CheckpointNotFoundError: If the named checkpoint does not exist.
        CorruptCheckpointError: If every candidate is corrupt, which names each; or there were some, and all are gone.
        StaleAttemptError: If another start overtook this one.
        StorageError: If the storage failed; no conclusion was drawn from it.
    """
    storage.probe()  # now and not after an hour of training, nor after gigabytes were read
    abandoned: set[int] = set()
    copies = copies or (lambda name: [storage])
    run = read_run(storage)  # a newer format raises: before anything is applied
    for _ in range(_ROUNDS):
        index = Index(storage, ignoring=abandoned)
        refuse_unfinished(storage, index, run)
        choice = choose(index, opening.checkpoint, rewind=opening.rewind)
        if choice.first is None:
            refuse_emptied(storage, run)
        try:
            applied = _apply_first(storage, index, choice, target, abandoned, copies=copies)
        except CheckpointNotFoundError:
            if choice.branch is not None:
                raise
            continue  # retention of a running attempt removed it meanwhile: list again
        run_id = _ensure_run(storage, index, opening)
        document = _document(index.highest + 1, choice, applied, opening)
        if not _parent_stays(document, copies):
            continue
        data = encode(document)
        if create_once(storage, attempt_key(document.attempt), data) != data:
            continue
        check_fence(storage, document)
        _refuse_replaced(storage, document)
        abandoned.add(document.attempt)
        if _still_newest(storage, abandoned, choice, document, opening):
            _warn_of(applied.passed_over, document, storage.url)
            return Opened(document, applied.contents, run_id)
    raise StaleAttemptError(
        f"{_ROUNDS} times in a row another process changed the run {storage.url} while this one was starting. "
        "Make sure that only one job is started on it."
    )


def _refuse_replaced(storage: Storage, attempt: AttemptDocument) -> None:
    """Give the number back if another process was at work under it: this one's document came late, and replaced its.

    Only where a lease takes the place of conditions (``docs/adr/0016-conditions-and-leases.md``): a folder is made
    after its attempt's document. The other process puts that back at its next save.

    Raises:
        StaleAttemptError: If so.
    """
    if not list_names(storage, checkpoints_prefix(attempt.attempt)):
        return
    storage.delete([attempt_key(attempt.attempt)])
    raise StaleAttemptError(
        f"another process took the run {storage.url} over while this one stood still in its start, and has saved "
        "since. This process must stop: the other one goes on. Make sure that only one job is started on the run."
    )


def _apply_first(
    storage: Storage, index: Index, choice: Choice, target: Target, ignoring: Collection[int], *, copies: Copies
) -> Applied:
    passed_over = list(choice.passed_over)
    for name in choice.candidates:
        try:
            contents = _apply(copies(name), name, index, target)
        except CorruptCheckpointError as error:
            if choice.branch is not None:
                raise CorruptCheckpointError(
                    f"{error}. The chosen checkpoint {name} cannot be used; name another one, or leave "
                    "checkpoint= out to use the newest good one."
                ) from error
            passed_over.append(PassedOver(checkpoint=str(name), reason=str(error)[:1000]))
            continue
        except StorageError as error:
            raise _with_way_on(error, name, choice) from error.__cause__
        return Applied(contents, tuple(passed_over))
    if choice.first is not None:
        if choice.branch is None and first_choice(storage, ignoring)[1] != choice.first:
            # What was found corrupt was the newest once: the others may be gone because there are newer ones.
            raise CheckpointNotFoundError(f"the newest checkpoint is not {choice.first} any more")
        each = "\n  ".join(f"{one.checkpoint}: {one.reason}" for one in passed_over)
        raise CorruptCheckpointError(
            f"no checkpoint of the run {storage.url} can be used, and starting afresh would lose it. Restore one of "
            f"them from a copy (`ckptkit copy BACKUP ROOT`), or start under another root:\n  {each}"
        )
    target.begin(storage.url)
    return Applied(None, tuple(passed_over))


def _with_way_on(error: StorageError, name: CheckpointName, choice: Choice) -> StorageError:
    """``error``, which nothing is concluded from, with what the user may conclude: the option that goes around it."""
    older = None
    if choice.branch is None:
        with contextlib.suppress(CkptKitError):
            older = next(islice(dropwhile(lambda one: one != name, choice.candidates), 1, None), None)
    if older is None:
        return error
    return StorageError(
        f'{str(error).rstrip(".")}. If that stays so, checkpoint="{older}" goes on from the one before {name}, which '
        "is left as it is."
    )


def _apply(places: Sequence[Storage], name: CheckpointName, index: Index, target: Target) -> Contents:
    """Apply the first copy of ``name`` that is whole."""
    problems: list[str] = []
    for storage in places:
        try:
            opened = open_checkpoint(storage, name, index.document(name.attempt))
            with LongWait(f"restoring {name}", opened.size_bytes_for(0)) as wait:
                contents = target.take(storage, opened, wait.advance)
        except CorruptCheckpointError as error:
            if len(places) == 1:
                raise
            problems.append(f"at {storage.url}: {error}")
            continue
        _warn_of_other_libraries(name, opened.manifest.libraries)
        if problems:
            _log.warning("%s is corrupt %s. Its copy at %s is whole and was taken.", name, problems[0], storage.url)
        return contents
    if not problems:
        raise CheckpointNotFoundError(f"the checkpoint {name} is not committed (any more)")
    raise CorruptCheckpointError("; ".join(problems))


def _warn_of_other_libraries(name: CheckpointName, recorded: Mapping[str, str]) -> None:
    for library, before, now in changed(recorded):
        advice = "" if before == UNKNOWN else f". To have them: pip install {library}=={before}"
        _log.warning(
            "%s was written under %s %s, and this is %s: another version may round differently, so the run may not go "
            "on to the same bits%s",
            *(name, library, before, now, advice),
        )


def _ensure_run(storage: Storage, index: Index, opening: Opening) -> str:
    fresh = RunDocument(run_id=opening.new_token(), created_at=opening.now().isoformat()).sealed()
    try:
        try:
            data = storage.read(RUN, MAX_SEALED_BYTES)
        except FileNotFoundError:
            data = create_once(storage, RUN, encode(fresh))
        run = decode(data, RunDocument, RUN)
    except CorruptCheckpointError as error:
        # It holds an id and a date; no checkpoint depends on it, so it must not keep a run from going on.
        _log.warning("%s; the run goes on, since no checkpoint depends on this file", error)
        return ""
    refuse_unfinished(storage, index, run)  # a copy may have begun since this start looked
    return run.run_id


def _document(number: int, choice: Choice, applied: Applied, opening: Opening) -> AttemptDocument:
    parent = applied.contents.checkpoint if applied.contents else None
    if number > MAX_ATTEMPT:
        raise ResumeError(
            f"the run has an attempt {number - 1}, and the format has no number after it; start under another root"
        )
    return AttemptDocument(
        attempt=number,
        token=opening.new_token(),
        parent=parent,
        branch=choice.branch,
        host=opening.host,
        created_at=opening.now().isoformat(),
        passed_over=[*applied.passed_over][-20:],
    ).sealed()


def _parent_stays(document: AttemptDocument, copies: Copies) -> bool:
    """Have the parent survive a power loss, before a document that survives names it; False if it has gone.

    A local file system shows a COMMIT before its folder was fsynced, and whoever made it may have died in between.
    To ask for its void tells, and where retention has just removed it, brings nothing back.
    """
    parent = CheckpointName.parse(document.parent) if document.parent is not None else None
    if parent is None:
        return True
    for storage in copies(parent):
        with contextlib.suppress(CorruptCheckpointError):  # of two copies, the one that was not taken
            if not storage.is_remote and isinstance(void(storage, parent, document.token), Void):
                return False
    return True


def _still_newest(storage: Storage, own: set[int], choice: Choice, document: AttemptDocument, opening: Opening) -> bool:
    """Whether the choice would be the same now, as if the own new attempts did not exist."""
    if document.parent is not None:
        parent = CheckpointName.parse(document.parent)
        assert parent is not None  # noqa: S101 - it was a candidate, hence parsed before
        try:
            committed(storage, parent)
        except CheckpointNotFoundError:
            return False
    if choice.branch is not None:
        return True
    if opening.checkpoint == "latest":
        return first_choice(storage, own)[1] == choice.first
    return choose(Index(storage, ignoring=own), opening.checkpoint, rewind=opening.rewind).first == choice.first


def _warn_of(passed_over: tuple[PassedOver, ...], document: AttemptDocument, url: str) -> None:
    if not passed_over:
        return
    each = "\n".join("  passed over {}: {}".format(one.checkpoint, *one.reason.splitlines()[:1]) for one in passed_over)
    _log.warning(
        "CORRUPT CHECKPOINT: the newest checkpoint could not be used. Training since the one before is repeated. "
        "`ckptkit verify %s` shows what else is damaged.\n%s\n  continuing from %s",
        *(url, each, document.parent or "a fresh start"),
    )


class Restorable(Protocol):
    """The half of `ckptkit.snapshot.Capturable` that takes a state over."""

    def apply(self, contents: Contents) -> None:
        """Take over ``contents``, all of it or nothing: what reading it overwrote is out of use until another call."""
        ...

    def begin(self, root: str) -> None:
        """Take the state as it is for a fresh start at ``root``; raises if it is not one."""
        ...


class Target(Protocol):
    """The seam between the protocol of a start and the one rank, or the many, that it starts."""

    def take(self, storage: Storage, opened: OpenedCheckpoint, report: Callable[[int], None]) -> Contents:
        """Load and apply ``opened`` in every rank, and return what this one applied; raises what any of them raised."""
        ...

    def begin(self, root: str) -> None:
        """Begin afresh at ``root`` in every rank; raises what any of them raised."""
        ...


class OneRank:
    """The `Target` of a job of one rank.

    Args:
        state: Its state.
    """

    def __init__(self, state: Restorable) -> None:
        self._state = state

    def take(self, storage: Storage, opened: OpenedCheckpoint, report: Callable[[int], None]) -> Contents:
        """As `Target`."""
        contents = load(storage, opened, report=report)
        self._state.apply(contents)
        return contents

    def begin(self, root: str) -> None:
        """As `Target`."""
        self._state.begin(root)
