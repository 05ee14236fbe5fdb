"""Copies a whole run, or one checkpoint as a new run, from one root to another.

The order: compare everything at the target; ``run.json``; the checkpoints, oldest first; events; the attempts'
documents, last the one that ends the copy. Guarantees: until then no start takes the target for a run
(`ckptkit.run.fence`); if anything at the target is not the source's, nothing is written; the same call resumes an
interrupted copy, with the same result. The source is only read, and its job may be running. Run one copy to a root at
a time, and no job on it: conflicts between them are detected only in part. Any single thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from ckptkit.checkpoint.commit import create_once
from ckptkit.checkpoint.transfer import ADVICE
from ckptkit.core.text import escaped, listed
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError
from ckptkit.format.documents import AttemptDocument, CopiedFrom, RunDocument, digest_of, encode
from ckptkit.format.layout import ATTEMPTS, CHECKPOINTS, EVENTS, FROZEN, RUN, CheckpointName, attempt_key
from ckptkit.run.fence import read_run, refuse_unfinished
from ckptkit.run.index import Index
from ckptkit.run.resolve import choose
from ckptkit.scrubber import scrub
from ckptkit.storage import Storage, is_same_place
from ckptkit.tools.copy.attempts import last_attempt, readable_documents, settled
from ckptkit.tools.copy.destination import Destination
from ckptkit.tools.copy.events import EventInventory
from ckptkit.tools.copy.inventory import Copied, CopyWatch, Inventory

_ROUNDS = 10  # surveys of a source that removes checkpoints while they are copied


@dataclass(frozen=True)
class CopyRequest:
    """Says what to copy, and gives what a new run needs.

    Attributes:
        checkpoint: A name or ``"latest"`` for one checkpoint alone; None for the whole run.
        now: The clock, for display and never for ordering.
        new_token: Returns 32 fresh random hexadecimal digits.
    """

    checkpoint: str | None
    now: Callable[[], datetime]
    new_token: Callable[[], str]


def copy_run(source: Storage, target: Storage, request: CopyRequest, watch: CopyWatch) -> Copied:
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
        index = settled(source, index)
    origin = CopiedFrom(
        url=escaped(scrub(source.url))[:4096],
        run_id=source_run.run_id if source_run is not None else None,
        checkpoint=str(alone) if alone is not None else None,
        last_attempt=last_attempt(source, index, alone),
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
    if wanted == "latest" and recorded is not None:
        wanted = recorded  # the source may have newer checkpoints since that copy began
    try:
        first = choose(index, wanted, rewind=True).first
    except CheckpointNotFoundError as error:
        if wanted != recorded:
            raise
        raise CheckpointNotFoundError(
            f"{error}. The target holds the part that was copied so far; copy another checkpoint to another root."
        ) from error
    if first is None:
        raise CheckpointNotFoundError("there is no committed checkpoint to copy")
    return first


class _Copy:
    def __init__(
        self,
        source: Storage,
        target: Storage,
        destination: Destination,
        run: RunDocument,
        watch: CopyWatch,
    ) -> None:
        assert run.copied_from is not None  # noqa: S101 - that of a copy
        self._source = source
        self._target = target
        self._destination = destination
        self._run = run
        self._alone = CheckpointName.parse(run.copied_from.checkpoint or "")
        self._copied = Copied(run.run_id, run.copied_from.checkpoint)
        self._inventory = Inventory(source, target, self._copied, watch)
        self._events = EventInventory(source, target)
        self._last = run.copied_from.last_attempt
        self._last_key = attempt_key(self._last)
        self._documents: dict[str, bytes] = {}

    def carry_out(self, index: Index) -> Copied:
        index, names = self._plan(index)
        documents = self._attempts(index)
        self._require_last(index)
        others = self._destination.examine(index, documents, names)
        self._copied.kept = [str(name) for name in others.kept]
        self._inventory.compare()
        if self._alone is None:
            self._events.compare(self._destination.events, index.attempts)
        if not self._inventory.waiting:
            self._require_any()
        self._begin()
        for name in others.left:
            self._destination.empty(name, self._run.run_id)
        index = self._carry(index)
        self._require_any()
        if self._alone is None:
            self._events.carry()
        self._put_attempts(index)
        return self._copied

    def _plan(self, index: Index) -> tuple[Index, list[CheckpointName]]:
        """Plan what the source has; look again if it has removed all of that since, for newer ones."""
        for _ in range(_ROUNDS):
            names = self._names(index)
            self._inventory.plan(index, names)
            if self._inventory.waiting or not index.names or self._alone is not None:
                break
            index = Index(self._source)
        return index, names

    def _names(self, index: Index) -> list[CheckpointName]:
        if self._alone is not None:
            return [self._alone]
        return [name for name in index.names if index.is_committed(name)]

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

    def _carry(self, index: Index) -> Index:
        """Copy the checkpoints; return the index of the source that covers all of them."""
        is_run = self._destination.has(self._last_key)
        lost = 0
        for _ in range(_ROUNDS):
            if is_run:
                # A job may start on it: as in any run, the attempt's document comes before its folders.
                self._put_attempts(index)
            self._inventory.carry()
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
            self._inventory.plan(index, self._names(index))
        raise self._too_fast()

    def _too_fast(self) -> CheckpointNotFoundError:
        return CheckpointNotFoundError(
            f"{self._source.url} removed {', '.join(self._copied.pruned[-3:]) or 'what it had'} before it was copied. "
            "Let the source keep more checkpoints for longer (keep=), or copy while nothing is trained there."
        )

    def _require_any(self) -> None:
        if self._copied.copied or self._copied.present:
            return
        if self._copied.corrupt:
            each = listed([f"{name}: {why}" for name, why in self._copied.corrupt.items()])
            raise CorruptCheckpointError(
                f"no checkpoint of {self._source.url} can be copied. Name another one, or repair the source:{each}"
            )
        if self._names(Index(self._source)):
            raise self._too_fast()
        raise CheckpointNotFoundError(f"there is no committed checkpoint at {self._source.url}")

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
        documents = readable_documents(index)
        if self._alone is not None:
            documents = [index.document(self._alone.attempt), self._first_attempt(self._alone)]
        self._documents.update({attempt_key(one.attempt): encode(one) for one in documents})
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
