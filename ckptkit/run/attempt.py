"""Opens an attempt: chooses a checkpoint, applies it, and fences every earlier start of the run.

The order is the protocol (``docs/format.md``, Starting): list, choose, check the documents, apply, which verifies every
byte; make sure that the applied checkpoint stays; create ``attempts/N+1.json`` with it as parent; list again. So a
wrong model fails before it fences a running job, and of two starts the last one wins. The training thread only, once
per process and run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import dropwhile, islice
from pathlib import Path

from ckptkit.checkpoint.commit import create_once, list_names, read_commit, read_document, void
from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.core.contents import Contents
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
from ckptkit.format.documents import MAX_ATTEMPT, AttemptDocument, Commit, PassedOver, RunDocument, Void, decode, encode
from ckptkit.format.events import Ended, LifeEnded
from ckptkit.format.layout import RUN, CheckpointName, attempt_key, checkpoints_prefix
from ckptkit.format.versions import UNKNOWN, changed
from ckptkit.run.event_log import read_segments, segments_of
from ckptkit.run.fence import check_fence, read_run, refuse_emptied, refuse_unfinished
from ckptkit.run.index import Index
from ckptkit.run.joint_start import Leader, Opened
from ckptkit.run.resolve import Choice, choose
from ckptkit.storage import Storage

_RECENT = timedelta(minutes=10)  # events are stored every five minutes at the latest, if something happens
_PROCESS = re.compile(r"(.+) \(pid ([0-9]{1,9})\)")


def this_process() -> str:
    """Return the host and the number of this process, as attempts record it and `sign_of_life` reads it."""
    return f"{socket.gethostname()} (pid {os.getpid()})"


def sign_of_life(storage: Storage, index: Index, me: str, now: datetime) -> str | None:
    """Return whose the run is, if its process may be alive; empty if nothing tells; None if it has ended."""
    number = max(index.attempts, default=0)
    if not number:
        return None
    try:
        last = read_segments(storage, index, segments_of(storage, number)[-1:])
        events = [event for segment in last.segments for event in segment.events]
        if any(isinstance(event, Ended | LifeEnded) for event in events):
            return None
        document = index.document(number)
        began_at = datetime.fromisoformat(document.created_at)
        age = max(now - datetime.fromisoformat(events[-1].at if events else document.created_at), timedelta())
    except (CorruptCheckpointError, StorageError, ValueError, TypeError):
        return ""  # no start depends on events
    theirs, mine = _PROCESS.fullmatch(document.host), _PROCESS.fullmatch(me)
    if theirs is None or mine is None:
        return ""
    is_here = theirs[1] == mine[1]
    if is_here and (theirs[2] == mine[2] or not _runs(int(theirs[2]), now - began_at)):
        return None
    seconds = int(age.total_seconds())
    return (
        f"attempt {number} on {document.host}, with a record {seconds} s ago"
        if is_here or (events and age < _RECENT)
        else ""
    )


def _runs(pid: int, since: timedelta) -> bool:
    """Return whether a process of this number has run for longer than ``since``: a younger one is another process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return fields[0] not in (b"Z", b"X") and age > since.total_seconds() - 1


_log = logging.getLogger("ckptkit")
_ROUNDS = 50  # a lost round means that another process made progress; this many are no coincidence


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
