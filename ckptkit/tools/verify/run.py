"""Verifies a whole run: every document, and every byte of every committed checkpoint.

Guarantees: reads and never writes, so a job may be running; one problem does not stop the rest; files that checkpoints
share are read once; the documents of a few checkpoints are in memory at a time. Folders without a COMMIT and void ones
are reported, but are no problem: these saves are in progress or did not complete. What a start would take is derived
from the same survey, so a running job may have changed it since. One thread calls; the watch is called from several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from ckptkit.checkpoint.commit import read_document
from ckptkit.core.worker import each_of
from ckptkit.errors import (
    CheckpointNotFoundError,
    CkptKitError,
    ResumeError,
    UnusableCheckpointError,
)
from ckptkit.format.documents import AttemptDocument, RunDocument
from ckptkit.format.layout import FROZEN, RUN, CheckpointName, attempt_key, frozen_folder
from ckptkit.run.fence import read_run, refuse_unfinished
from ckptkit.run.index import Survey, segment_before
from ckptkit.run.resolve import choose
from ckptkit.storage import Storage
from ckptkit.tools.verify.checkpoint import Proof, ProofOutcome, prove_checkpoint
from ckptkit.tools.verify.files import FileProver, Problem

_AT_ONCE = 4  # checkpoints with their documents in memory


class AuditWatch(Protocol):
    """Receives the progress of an audit, on any of its threads."""

    def plan(self, checkpoints: int, size_bytes: int) -> None:
        """Receive the total work, according to a listing."""
        ...

    def advance(self, size_bytes: int) -> None:
        """Receive the number of bytes just read."""
        ...

    def end(self, name: str, outcome: ProofOutcome) -> None:
        """Receive the outcome of a checkpoint."""
        ...


@dataclass(frozen=True)
class Start:
    """Says what a start would do with the run as found.

    Attributes:
        checkpoint: The one it would continue from; None for a fresh start, or if ``problem`` says why there is none.
        passed_over: Newer checkpoints that it would find corrupt, newest first.
        problem: Why it would fail.
    """

    checkpoint: str | None
    passed_over: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Audit:
    """Holds the result of an audit.

    Attributes:
        checkpoints: Oldest attempt first.
        problems: Problems of files that belong to no single checkpoint: ``run.json``, and attempts' documents.
        uncommitted: Folders without a COMMIT.
        void: Folders that never become a checkpoint.
        start: What a start would do; None if only one checkpoint was verified.
        files: Number of verified shards.
    """

    checkpoints: tuple[Proof, ...]
    problems: tuple[Problem, ...] = ()
    uncommitted: tuple[str, ...] = ()
    void: tuple[str, ...] = ()
    start: Start | None = None
    files: int = 0

    @property
    def is_fine(self) -> bool:
        """Whether there is no problem."""
        corrupt = any(one.outcome == "corrupt" for one in self.checkpoints)
        return not (corrupt or self.problems or (self.start is not None and self.start.problem))


@dataclass
class _Run:
    """Holds one survey of a run."""

    survey: Survey
    frozen: Mapping[str, int]
    attempts: dict[int, AttemptDocument | CkptKitError] = field(default_factory=dict)

    def attempt(self, number: int) -> AttemptDocument | CkptKitError:
        if number not in self.attempts:
            try:
                document = self.survey.document(number)
                segment_before(document)
                self.attempts[number] = document
            except UnusableCheckpointError as error:
                self.attempts[number] = error
        return self.attempts[number]

    def listed(self, name: CheckpointName) -> dict[str, int]:
        """Return sizes by key of everything that may belong to ``name``."""
        own = {f"{name.folder}/{file}": size for file, size in self.survey.folders.files(name).items()}
        shared = f"{frozen_folder(name.attempt)}/"
        return {**own, **{key: size for key, size in self.frozen.items() if key.startswith(shared)}}


def audit(storage: Storage, watch: AuditWatch, checkpoint: str | None = None) -> Audit:
    """Verify the run, or one checkpoint of it.

    Args:
        storage: The run root.
        watch: Receives the progress.
        checkpoint: A name or ``"latest"`` for one alone; None for all.

    Raises:
        CheckpointNotFoundError: If the requested one is not committed.
        CorruptCheckpointError: If ``latest`` was requested and no document leads to one.
        StorageError: If the storage failed; the result is unknown.
    """
    survey = Survey(storage)
    # After the survey: whatever a surveyed checkpoint refers to exists by now, unless it was removed.
    run = _Run(survey, storage.walk(f"{FROZEN}/"))
    names = [*filter(survey.is_committed, survey.names)] if checkpoint is None else _one(survey, checkpoint)
    keys = {key: size for name in names for key, size in run.listed(name).items() if key.endswith(".safetensors")}
    watch.plan(len(names), sum(keys.values()))
    problems = _problems_of_run(storage, run) if checkpoint is None else []
    each_of(sorted({name.attempt for name in names}), run.attempt)  # before threads use them
    with FileProver(storage, watch.advance) as prover:
        proofs = _prove_all(storage, run, names, prover, watch)
        files = prover.files
    if checkpoint is not None:
        return Audit(tuple(proofs), files=files)
    return Audit(
        tuple(proofs),
        tuple(problems),
        tuple(str(name) for name in survey.names if survey.folders.is_uncommitted(name)),
        tuple(str(name) for name in survey.names if _is_void(survey, name)),
        _start(storage, survey, proofs),
        files,
    )


def _one(survey: Survey, checkpoint: str) -> list[CheckpointName]:
    first = choose(survey, checkpoint, rewind=True).first
    if first is None:
        raise CheckpointNotFoundError("there is no committed checkpoint to verify")
    return [first]


def _is_void(survey: Survey, name: CheckpointName) -> bool:
    return not survey.folders.is_uncommitted(name) and not survey.is_committed(name)


def _prove_all(
    storage: Storage, run: _Run, names: Sequence[CheckpointName], prover: FileProver, watch: AuditWatch
) -> list[Proof]:
    def prove(name: CheckpointName) -> Proof:
        proof = prove_checkpoint(storage, name, run.attempts[name.attempt], run.listed(name), prover)
        watch.end(str(name), proof.outcome)
        return proof

    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ckptkit-audit")
    try:
        return list(pool.map(prove, names))
    except BaseException:
        prover.__exit__()  # otherwise running proofs would wait for all of their files
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _problems_of_run(storage: Storage, run: _Run) -> list[Problem]:
    found = []
    numbers = sorted(run.survey.attempts | run.survey.orphans)
    try:
        read_document(storage, RUN, RunDocument)
    except FileNotFoundError:
        if numbers:
            found.append(
                Problem(RUN, f"{RUN} is missing; no checkpoint depends on it, and the next start creates a new one")
            )
    except UnusableCheckpointError as error:
        found.append(Problem(RUN, str(error)))
    for number, document in zip(numbers, each_of(numbers, run.attempt), strict=True):
        if isinstance(document, CkptKitError):
            found.append(Problem(attempt_key(number), str(document)))
    return found


def _start(storage: Storage, survey: Survey, proofs: Iterable[Proof]) -> Start:
    outcomes = {proof.name: proof.outcome for proof in proofs}
    try:
        refuse_unfinished(storage, survey, read_run(storage))
        choice = choose(survey)
        passed_over: list[str] = []
        for name in map(str, choice.candidates):
            if outcomes.get(name) == "whole":
                return Start(name, tuple(passed_over))
            if outcomes.get(name) == "corrupt":
                passed_over.append(name)
    except (UnusableCheckpointError, ResumeError) as error:
        return Start(None, problem=str(error))
    if not passed_over:
        return Start(None)
    newest = ", ".join(islice(passed_over, 3))
    return Start(None, tuple(passed_over), f"all checkpoints that a start would try are corrupt: {newest}")
