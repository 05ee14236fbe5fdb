"""Copies a whole run, or one checkpoint as a new run, from one root to another.

The order: compare everything at the target; ``run.json``; the checkpoints, oldest first; events; the attempts'
documents, last the one that ends the copy. Until then no start takes the target for a run (`ckptkit.run.ownership`). If
anything at the target is not the source's, nothing is written. The same call resumes an interrupted copy, with the same
result. The source is only read, and its job may be running. Run one copy to a root at a time, and no job on it:
conflicts between them are detected only in part. Any single thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime

from ckptkit.checkpoint.commit import create_once, list_attempts
from ckptkit.checkpoint.open import OpenedCheckpoint, open_checkpoint
from ckptkit.checkpoint.transfer import ADVICE, Transfer, files_of
from ckptkit.core.text import escaped, listed
from ckptkit.core.worker import each_of
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError, UnusableCheckpointError
from ckptkit.format.documents import MAX_ATTEMPT, AttemptDocument, CopiedFrom, RunDocument, digest_of, encode
from ckptkit.format.events import MAX_SEGMENT_BYTES, decode_segment
from ckptkit.format.layout import (
    ATTEMPTS,
    CHECKPOINTS,
    EVENTS,
    FROZEN,
    RUN,
    CheckpointName,
    attempt_key,
    attempt_of,
    parse_segment,
)
from ckptkit.run.index import Index
from ckptkit.run.ownership import no_checkpoint, read_run, refuse_unfinished
from ckptkit.run.resolve import BEST, LATEST, choose
from ckptkit.scrubber import scrub
from ckptkit.storage import Storage, is_same_place
from ckptkit.tools.copy.destination import Destination
from ckptkit.tools.watch import CheckpointWatch

_ROUNDS = 10  # surveys of a source that removes checkpoints, or forgets attempts, while they are copied


@dataclass(frozen=True)
class CopyRequest:
    """Says what to copy, and gives what a new run needs."""

    checkpoint: str | None  # for one alone; None for the whole run
    now: Callable[[], datetime]
    new_token: Callable[[], str]  # 32 fresh random hexadecimal digits


@dataclass
class Copied:
    """Records the outcome of a copy; names of checkpoints, oldest first."""

    run_id: str
    checkpoint: str | None = None  # the one that was copied alone
    copied: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)  # there already, and the same
    kept: list[str] = field(default_factory=list)  # there already, and no longer at the source
    pruned: list[str] = field(default_factory=list)  # removed at the source before they were copied
    corrupt: dict[str, str] = field(default_factory=dict)  # why, by name
    copied_bytes: int = 0
    found_bytes: int = 0  # there already, verified


def copy_run(source: Storage, target: Storage, request: CopyRequest, watch: CheckpointWatch) -> Copied:
    """Copy what ``request`` asks for, or the rest of it.

    Raises:
        ValueError: If both are the same root.
        CheckpointNotFoundError: If there is nothing to copy, or the source removes it faster than it is copied.
        CorruptCheckpointError: If none of it can be copied, since it is corrupt; names each.
        ResumeError: If something at ``target`` is not the source's, which is named and nothing was written; or the
            source is itself an unfinished copy.
        StaleAttemptError: If another process wrote to ``target`` meanwhile.
        StorageError: If one of the two storages failed. The same call resumes.
    """
    if is_same_place(source.url, target.url):
        raise ValueError(f"{source.url} cannot be copied to itself")
    index = Index(source)
    source_run = read_run(source)
    refuse_unfinished(source, index, source_run)
    destination = Destination(target, source.url)
    alone = _alone(index, request.checkpoint, destination.run)
    if alone is None:
        index = _settled(source, index)
    origin = CopiedFrom(
        url=escaped(scrub(source.url))[:4096],
        run_id=source_run.run_id if source_run is not None else None,
        checkpoint=str(alone) if alone is not None else None,
        last_attempt=_last_attempt(source, index, alone),
    )
    destination.accept_run(origin)
    # A new id, not the source's: the two runs may diverge from here on.
    run = destination.run or RunDocument(
        run_id=request.new_token(), created_at=request.now().isoformat(), copied_from=origin
    )
    return _Copy(source, target, destination, run.sealed(), watch).carry_out(index)


def _alone(index: Index, wanted: str | None, begun: RunDocument | None) -> CheckpointName | None:
    """Return the checkpoint that is copied alone; None for a whole run."""
    if wanted is None:
        return None
    recorded = begun.copied_from.checkpoint if begun is not None and begun.copied_from is not None else None
    if wanted.partition(":")[0] in (LATEST, BEST) and recorded is not None:
        wanted = recorded  # the source may have newer, or better, checkpoints since that copy began
    try:
        first = choose(index, wanted, rewind=True).first
    except CheckpointNotFoundError as error:
        if wanted != recorded:
            raise
        raise CheckpointNotFoundError(
            f"{error}. The target holds the part that was copied so far; copy another checkpoint to another root."
        ) from error
    if first is None:
        raise no_checkpoint(index.storage)
    return first


def _settled(source: Storage, index: Index) -> Index:
    """Return ``index``, or a newer one if a start at the source has forgotten an attempt since it was made."""

    def is_gone(attempt: int) -> bool:
        try:
            index.document(attempt)
        except CorruptCheckpointError as error:
            return isinstance(error.__cause__, FileNotFoundError)
        return False

    for _ in range(_ROUNDS):
        if not any(map(is_gone, index.attempts)):
            break
        index = Index(source)
    return index


def _last_attempt(source: Storage, index: Index, alone: CheckpointName | None) -> int:
    """Return the number of the attempt whose document ends the copy.

    It stays at the source for good, unless it is damaged or deleted by hand: its attempt has a checkpoint, or the copy
    makes it itself.
    """
    if alone is not None:
        if alone.attempt == MAX_ATTEMPT:
            raise ResumeError(f"{alone} belongs to the last attempt number of the format; copy the whole run")
        return alone.attempt + 1
    readable = [document.attempt for document in _readable_documents(index)]
    if not readable:
        if not any(index.is_committed(name) for name in index.names):
            raise no_checkpoint(source)
        raise CorruptCheckpointError(
            f"no file below attempts/ at {source.url} can be read, so no checkpoint there can be checked"
        )
    # The source may forget any other start before this copy ends (docs/adr/0005).
    with_commit = [attempt for attempt in readable if any(map(index.is_committed, index.names_of(attempt)))]
    return (with_commit or readable)[-1]


def _readable_documents(index: Index) -> list[AttemptDocument]:
    documents = []
    for attempt in sorted(index.attempts):
        try:
            documents.append(index.document(attempt))
        except CorruptCheckpointError:
            continue  # its checkpoints are reported as corrupt, since none can be checked
    return documents


class _Copy:
    """Copies checkpoints and documents; every planned checkpoint has one outcome in `Copied`.

    One that cannot be copied does not prevent the others. Their documents are read again in each step, since those of
    all checkpoints together may not fit into memory.
    """

    def __init__(
        self, source: Storage, target: Storage, destination: Destination, run: RunDocument, watch: CheckpointWatch
    ) -> None:
        assert run.copied_from is not None  # noqa: S101 - that of a copy
        self._source = source
        self._target = target
        self._destination = destination
        self._run = run
        self._watch = watch
        self._alone = CheckpointName.parse(run.copied_from.checkpoint or "")
        self._copied = Copied(run.run_id, run.copied_from.checkpoint)
        self._last = run.copied_from.last_attempt
        self._last_key = attempt_key(self._last)
        self._documents: dict[str, bytes] = {}
        self._waiting: list[CheckpointName] = []  # oldest first
        self._planned: set[CheckpointName] = set()
        self._proven: set[str] = set()
        self._sizes: dict[str, int] = {}

    def carry_out(self, index: Index) -> Copied:
        index, names = self._plan_any(index)
        documents = self._attempts(index)
        self._require_last(index)
        kept, left = self._destination.examine(index, documents, names)
        self._copied.kept = [*map(str, kept)]
        self._transfer_waiting(index, compare_only=True)
        if self._alone is None:
            self._compare_events(index.attempts)
        if not self._waiting:
            self._require_any()
        self._begin()
        for name in left:
            self._destination.empty(name, self._run.run_id)
        index = self._carry(index)
        self._require_any()
        if self._alone is None:
            self._carry_events()
        self._put_attempts(index)
        return self._copied

    def _plan_any(self, index: Index) -> tuple[Index, list[CheckpointName]]:
        """Plan what the source has; look again if it has removed all of that since, for newer ones."""
        for _ in range(_ROUNDS):
            names = self._names(index)
            self._plan(index, names)
            if self._waiting or not index.names or self._alone is not None:
                break
            index = Index(self._source)
        return index, names

    def _names(self, index: Index) -> list[CheckpointName]:
        if self._alone is not None:
            return [self._alone]
        return [name for name in index.names if index.is_committed(name)]

    def _plan(self, index: Index, names: Collection[CheckpointName]) -> None:
        """Add those of ``names`` that are new."""
        for name in sorted(set(names) - self._planned):
            self._planned.add(name)
            opened = self._open(index, name)
            if opened is not None:
                self._waiting.append(name)
                self._sizes.update({file.key: file.size_bytes for file in files_of(opened)})
        ended = len(self._copied.present) + len(self._copied.copied)
        self._watch.plan(ended + len(self._waiting), sum(self._sizes.values()))

    def _open(self, index: Index, name: CheckpointName) -> OpenedCheckpoint | None:
        """Return the checkpoint's documents, or record its outcome and return None."""
        try:
            return open_checkpoint(self._source, name, index.document(name.attempt))
        except CheckpointNotFoundError:
            self._end(name, "pruned")
        except CorruptCheckpointError as error:
            self._end(name, "corrupt", str(error))
        return None

    def _transfer_waiting(self, index: Index, *, compare_only: bool = False) -> None:
        """Compare the checkpoints that wait with what is at the target, and then copy what that lacks of them."""
        for name in tuple(self._waiting):
            opened = self._open(index, name)
            if opened is None:
                continue
            transfer = Transfer(self._source, self._target, opened, self._proven)
            try:
                transfer.compare(self._watch.advance)
                if not compare_only:
                    self._end(name, transfer.finish(self._watch.advance))
                elif transfer.is_committed:
                    self._end(name, "present")
            except CheckpointNotFoundError:
                self._end(name, "pruned")
            except CorruptCheckpointError as error:
                self._end(name, "corrupt", str(error))
            finally:
                self._copied.found_bytes += transfer.found_bytes
                self._copied.copied_bytes += transfer.copied_bytes

    def _carry(self, index: Index) -> Index:
        """Copy the checkpoints; return the index of the source that covers all of them."""
        is_run = self._destination.has(self._last_key)
        lost = 0
        for _ in range(_ROUNDS):
            if is_run:
                # A job may start on it: as in any run, the attempt's document comes before its folders.
                self._put_attempts(index)
            self._transfer_waiting(index)
            if len(self._copied.pruned) == lost:
                return index
            for name in map(CheckpointName.parse, self._copied.pruned[lost:]):
                if name is not None:
                    self._destination.empty(name, self._run.run_id)
            if self._alone is not None:
                break
            lost = len(self._copied.pruned)
            # What retention kept may be newer than all that was planned.
            index = Index(self._source)
            self._plan(index, self._names(index))
        raise self._too_fast()

    def _end(self, name: CheckpointName, outcome: str, why: str = "") -> None:
        if name in self._waiting:
            self._waiting.remove(name)
        if outcome == "corrupt":
            self._copied.corrupt[str(name)] = why
        else:
            getattr(self._copied, outcome).append(str(name))
        self._watch.end(str(name), outcome)

    def _begin(self) -> None:
        """Write the first file; from here on the target is this copy's."""
        self._target.probe()
        # Remote event files are never unfinished: each is one small put.
        events = () if self._target.is_remote else (f"{EVENTS}/",)
        for prefix in (RUN, f"{ATTEMPTS}/", f"{CHECKPOINTS}/", f"{FROZEN}/", *events):
            self._target.clear_unfinished(prefix, lambda key: True)  # all from earlier calls: one copy runs at a time
        self._destination.make_durable()
        if self._destination.run is None and create_once(self._target, RUN, encode(self._run)) != encode(self._run):
            raise ResumeError(f"another process has just begun to write to {self._target.url}. {ADVICE}")

    def _too_fast(self) -> CheckpointNotFoundError:
        return CheckpointNotFoundError(
            f"{self._source.url} removed {', '.join(self._copied.pruned[-3:]) or 'what it had'} before it was copied. "
            "Let the source keep more checkpoints for longer, or copy while nothing is trained there."
        )

    def _require_any(self) -> None:
        if self._copied.copied or self._copied.present:
            return
        if self._copied.corrupt:
            corrupt = listed([f"{name}: {why}" for name, why in self._copied.corrupt.items()])
            raise CorruptCheckpointError(
                f"no checkpoint of {self._source.url} can be copied. Name another one, or repair the source:{corrupt}"
            )
        if self._names(Index(self._source)):
            raise self._too_fast()
        raise no_checkpoint(self._source)

    def _require_last(self, index: Index) -> None:
        """Raise if the document that ends the copy is neither here nor at the source: no start could take the copy."""
        if self._destination.has(self._last_key) or self._last_key in self._documents:
            return
        try:
            index.document(self._last)
        except CorruptCheckpointError as error:
            raise ResumeError(
                f"the copy at {self._target.url} cannot be completed: it ends with a document that "
                f"{self._source.url} no longer has intact ({error}). {ADVICE}"
            ) from error

    def _attempts(self, index: Index) -> dict[str, bytes]:
        """Return the attempts' documents of the copy, by key.

        Those of earlier surveys are included: the source may have forgotten them since, or they may be damaged now, and
        checkpoints that were copied meanwhile need them.
        """
        documents = _readable_documents(index)
        if self._alone is not None:
            documents = [index.document(self._alone.attempt), self._first_attempt(self._alone)]
        self._documents.update({attempt_key(document.attempt): encode(document) for document in documents})
        return self._documents

    def _first_attempt(self, parent: CheckpointName) -> AttemptDocument:
        """Make the first attempt of the new run from ``run.json`` alone, so that a resumed copy makes the same one."""
        return AttemptDocument(
            attempt=parent.attempt + 1,
            token=digest_of(encode(self._run)),
            parent=str(parent),
            host="ckptkit copy",
            created_at=self._run.created_at,
        ).sealed()

    def _put_attempts(self, index: Index) -> None:
        documents = self._attempts(index)
        for key in sorted(documents, key=lambda key: (key == self._last_key, key)):
            if self._destination.has(key):
                continue
            if create_once(self._target, key, documents[key]) != documents[key]:
                raise ResumeError(
                    f"another process has just made {key} at {self._target.url}: a job was started there. {ADVICE}"
                )
            self._destination.add(key)

    def _compare_events(self, attempts: Collection[int]) -> None:
        """Refuse event files at the target that are not the source's.

        Contents are not checked: a damaged file is copied as it is, for readers to report. ``attempts`` had a document
        at the source when the target was surveyed.
        """

        def is_same(key: str) -> bool:
            if parse_segment(key.removeprefix(f"{EVENTS}/")) is None:
                return False
            try:
                original = self._event_file(key)
            except FileNotFoundError:
                attempt = attempt_of(key)  # a start there may have forgotten it since the survey
                return attempt in attempts and attempt not in list_attempts(self._source)
            return any(self._target.read(key, MAX_SEGMENT_BYTES) == original for _ in range(2))

        keys = sorted(self._destination.events)
        for key, matches in zip(keys, each_of(keys, is_same), strict=True):
            if not matches:
                raise ResumeError(f"{key} at {self._target.url} differs from the one at {self._source.url}. {ADVICE}")

    def _carry_events(self) -> None:
        files = self._source.list(EVENTS).files
        for file in sorted(file for file in files if parse_segment(file) is not None):
            key = f"{EVENTS}/{file}"
            if key in self._destination.events or files[file] > MAX_SEGMENT_BYTES:
                continue
            try:
                data = self._event_file(key)
            except FileNotFoundError:
                continue  # a start there has just forgotten its attempt
            if create_once(self._target, key, data, MAX_SEGMENT_BYTES) != data:
                raise ResumeError(f"another process has just made {key} at {self._target.url}. {ADVICE}")

    def _event_file(self, key: str) -> bytes:
        data = self._source.read(key, MAX_SEGMENT_BYTES)
        try:
            decode_segment(data, key)
        except UnusableCheckpointError:
            return self._source.read(key, MAX_SEGMENT_BYTES)  # the answer may have been wrong, and not the file
        return data
