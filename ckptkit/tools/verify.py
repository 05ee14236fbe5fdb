"""Verifies a whole run: every document, and every byte of every committed checkpoint, and reports all problems.

`ckptkit.checkpoint.open` and `ckptkit.checkpoint.read` stop at the first problem, since a start must not use damaged
data; this goes on with whatever can still be checked. Reads and never writes, so a job may be running, and a checkpoint
that was removed meanwhile is no corrupt one. Each file is read once, from end to end, however many checkpoints share
it; memory is bounded by `PROVERS` windows, and by the documents of a few checkpoints. A checkpoint without a problem
here is accepted by `ckptkit.checkpoint.read.verify`. What a start would take is derived from the same survey, so a
running job may have changed it since. One thread calls; the watch is called from several.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import xxhash

from ckptkit.checkpoint.commit import read_commit, read_document
from ckptkit.checkpoint.open import (
    OpenedCheckpoint,
    check_together,
    check_token,
    committed,
    decode_manifest,
    open_manifest,
    read_rank,
)
from ckptkit.checkpoint.reread import reread_if_corrupt
from ckptkit.checkpoint.shard_bytes import StoredLeaves
from ckptkit.checkpoint.write import BlockDigests
from ckptkit.core.text import some
from ckptkit.core.worker import each_of
from ckptkit.errors import (
    CheckpointNotFoundError,
    CkptKitError,
    CorruptCheckpointError,
    ResumeError,
    UnusableCheckpointError,
)
from ckptkit.format.documents import (
    MAX_DOCUMENT_BYTES,
    AttemptDocument,
    Commit,
    FileEntry,
    Manifest,
    RankManifest,
    RunDocument,
    ShardEntry,
    TensorEntry,
    digest_of,
)
from ckptkit.format.layout import COMMIT, FROZEN, RUN, CheckpointName, attempt_key, frozen_folder
from ckptkit.run.index import Survey, segment_before
from ckptkit.run.ownership import no_checkpoint, read_run, refuse_unfinished
from ckptkit.run.resolve import choose
from ckptkit.storage import Storage
from ckptkit.tools.watch import CheckpointWatch

PROVERS = 16
_AT_ONCE = 4  # checkpoints with their documents in memory
_WINDOW_BYTES = 16 << 20  # a storage may need more for full speed; reading many files at once makes up for that
_RANK = re.compile(r"rank-([0-9]{5})\.json")

Outcome = Literal["whole", "corrupt", "removed"]


@dataclass(frozen=True)
class FileProblem:
    """Describes one problem with a file, in a sentence that names it."""

    file: str
    message: str
    tensors: tuple[str, ...] = ()  # that may be damaged, as precisely as the digests tell
    expected: str | None = None  # the digest that the file should have, if that is the problem
    found: str | None = None


@dataclass(frozen=True)
class Proof:
    """Holds what was found about one checkpoint; retention or another process may have ``removed`` it meanwhile."""

    name: str
    outcome: Outcome
    size_bytes: int = 0  # of its shards, shared ones too, as far as its documents could be read
    problems: tuple[FileProblem, ...] = ()


@dataclass(frozen=True)
class Start:
    """Says what a start would do with the run as found."""

    checkpoint: str | None  # None for a fresh start, or if there is a problem
    passed_over: tuple[str, ...] = ()  # newer ones that it would find corrupt, newest first
    problem: str | None = None


@dataclass(frozen=True)
class Audit:
    """Holds the result of an audit."""

    checkpoints: tuple[Proof, ...]  # oldest attempt first
    problems: tuple[FileProblem, ...] = ()  # of files that belong to no single checkpoint
    uncommitted: tuple[str, ...] = ()  # folders of saves that are in progress or did not complete, which is no problem
    void: tuple[str, ...] = ()  # folders that never become a checkpoint
    start: Start | None = None  # None if only one checkpoint was verified
    files: int = 0

    @property
    def is_fine(self) -> bool:
        corrupt = any(proof.outcome == "corrupt" for proof in self.checkpoints)
        return not (corrupt or self.problems or (self.start is not None and self.start.problem))


def audit(storage: Storage, watch: CheckpointWatch, checkpoint: str | None = None) -> Audit:
    """Verify the run, or one checkpoint of it.

    Raises CheckpointNotFoundError if the requested one is not committed, CorruptCheckpointError if ``latest`` was
    requested and no document leads to one, and StorageError if the storage failed: the result is unknown then.
    """
    survey = Survey(storage)
    # After the survey: whatever a surveyed checkpoint refers to exists by now, unless it was removed.
    run = _AuditedRun(survey, storage.walk(f"{FROZEN}/"))
    names = [*filter(survey.is_committed, survey.names)]
    if checkpoint is not None:
        first = choose(survey, checkpoint, rewind=True).first
        if first is None:
            raise no_checkpoint(storage)
        names = [first]
    keys = {key: size for name in names for key, size in run.listed(name).items() if key.endswith(".safetensors")}
    watch.plan(len(names), sum(keys.values()))
    problems = _problems_of_run(storage, run) if checkpoint is None else []
    each_of(sorted({name.attempt for name in names}), run.attempt)  # before threads use them
    at_once = min(_AT_ONCE, max(1, len(names)))
    files = _Files(storage, watch.advance, PROVERS // at_once)

    def prove(name: CheckpointName) -> Proof:
        proof = _Prover(storage, name, run.attempts[name.attempt], run.listed(name)).prove(files)
        if not files.is_stopped:
            watch.end(str(name), proof.outcome)
        return proof

    proofs = each_of(names, prove, threads=at_once, few=1, stop=files.stop)
    if checkpoint is not None:
        return Audit(tuple(proofs), files=files.count)
    uncommitted = {name: COMMIT not in survey.files(name) for name in survey.names if not survey.is_committed(name)}
    return Audit(
        tuple(proofs),
        tuple(problems),
        tuple(str(name) for name, is_under_way in uncommitted.items() if is_under_way),
        tuple(str(name) for name, is_under_way in uncommitted.items() if not is_under_way),
        _start(storage, survey, proofs),
        files.count,
    )


@dataclass
class _AuditedRun:
    survey: Survey
    frozen: Mapping[str, int]
    attempts: dict[int, AttemptDocument | CkptKitError] = field(default_factory=dict)

    def attempt(self, number: int) -> AttemptDocument | CkptKitError:
        """Return the document of an attempt, or why there is none."""
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
        own = {f"{name.folder}/{file}": size for file, size in self.survey.files(name).items()}
        shared = f"{frozen_folder(name.attempt)}/"
        return {**own, **{key: size for key, size in self.frozen.items() if key.startswith(shared)}}


def _problems_of_run(storage: Storage, run: _AuditedRun) -> list[FileProblem]:
    problems = []
    numbers = sorted(run.survey.attempts | run.survey.orphans)
    try:
        read_document(storage, RUN, RunDocument)
    except FileNotFoundError:
        if numbers:
            problems.append(
                FileProblem(RUN, f"{RUN} is missing; no checkpoint depends on it, and the next start creates a new one")
            )
    except UnusableCheckpointError as error:
        problems.append(FileProblem(RUN, str(error)))
    for number, document in zip(numbers, each_of(numbers, run.attempt), strict=True):
        if isinstance(document, CkptKitError):
            problems.append(FileProblem(attempt_key(number), str(document)))
    return problems


def _start(storage: Storage, survey: Survey, proofs: Iterable[Proof]) -> Start:
    outcomes = {proof.name: proof.outcome for proof in proofs}
    passed_over: list[str] = []
    try:
        refuse_unfinished(storage, survey, read_run(storage))
        for name in map(str, choose(survey).candidates):
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


class _Prover:
    """Verifies one checkpoint and collects its problems.

    Without a sound COMMIT and manifest, the listed rank files are checked by their form alone. ``listed`` has the sizes
    by key of everything in its folder and in its attempt's ``frozen/``.
    """

    def __init__(
        self, storage: Storage, name: CheckpointName, attempt: AttemptDocument | CkptKitError, listed: Mapping[str, int]
    ) -> None:
        self._storage = storage
        self._name = name
        self._attempt = attempt
        self._listed = listed
        self._problems: list[FileProblem] = []

    def prove(self, files: _Files) -> Proof:
        try:
            ranks = self._documents()
        except CheckpointNotFoundError:
            return Proof(str(self._name), "removed")
        shards = {shard.key: shard for document in ranks for shard in document.shards}
        self._problems += files.problems([(shard, self._listed.get(key)) for key, shard in shards.items()])
        if self._problems and self._is_gone():
            return Proof(str(self._name), "removed")
        size_bytes = sum(shard.size_bytes for shard in shards.values())
        return Proof(str(self._name), "corrupt" if self._problems else "whole", size_bytes, tuple(self._problems))

    def _documents(self) -> list[RankManifest]:
        """Return the readable rank documents; raise CheckpointNotFoundError if the checkpoint was removed."""
        commit = self._commit()
        manifest = self._manifest(commit)
        known = self._attempt.token if isinstance(self._attempt, AttemptDocument) else None
        token = known or (commit.token if commit is not None else None)
        files = self._rank_files(manifest)
        documents = each_of([*files.items()], lambda numbered: self._rank(*numbered, token))
        ranks = [document for document in documents if isinstance(document, RankManifest)]
        self._problems += [problem for problem in documents if isinstance(problem, FileProblem)]
        if len(ranks) == len(documents) and manifest is not None and commit is not None:
            try:
                check_together(OpenedCheckpoint(self._name, commit, manifest, tuple(ranks)))
                StoredLeaves(ranks)
            except CorruptCheckpointError as error:
                self._note(self._name.manifest_key, error)
        return ranks

    def _is_gone(self) -> bool:
        """Return whether the checkpoint is no longer committed."""
        try:
            return not isinstance(read_commit(self._storage, self._name), Commit)
        except CorruptCheckpointError:
            return False

    def _note(self, file: str, error: CkptKitError) -> None:
        self._problems.append(FileProblem(file, str(error)))

    def _commit(self) -> Commit | None:
        if isinstance(self._attempt, CkptKitError):
            self._note(attempt_key(self._name.attempt), self._attempt)
        commit = None
        try:
            commit = committed(self._storage, self._name)
            if isinstance(self._attempt, AttemptDocument):
                check_token(self._name, commit, self._attempt)
        except UnusableCheckpointError as error:
            self._note(self._name.commit_key, error)
        return commit

    def _manifest(self, commit: Commit | None) -> Manifest | None:
        """Return the manifest that COMMIT refers to; one without a COMMIT must not accuse the files that it names."""
        key = self._name.manifest_key
        if commit is not None:
            file = FileEntry(key=key, size_bytes=commit.manifest_size_bytes, digest=commit.manifest_digest)
            try:
                return open_manifest(self._storage, self._name, commit)
            except UnusableCheckpointError as error:
                self._problems.append(self._problem(file, error))
            return None
        try:
            reread_if_corrupt(lambda: decode_manifest(self._storage.read(key, MAX_DOCUMENT_BYTES), self._name))
        except FileNotFoundError:
            self._problems.append(FileProblem(key, f"{key} is missing"))
        except UnusableCheckpointError as error:
            self._note(key, error)
        return None

    def _rank_files(self, manifest: Manifest | None) -> dict[int, FileEntry]:
        """Return the rank files, from the manifest or, without one, from the listing."""
        if manifest is not None:
            return dict(enumerate(manifest.rank_files))
        files = {}
        for key in sorted(self._listed):
            match = _RANK.fullmatch(key.removeprefix(f"{self._name.folder}/"))
            if match is not None:
                data = self._bytes(key) or b""
                files[int(match[1])] = FileEntry(key=key, size_bytes=len(data), digest=digest_of(data))
        return files

    def _rank(self, rank: int, file: FileEntry, token: str | None) -> RankManifest | FileProblem:
        try:
            return read_rank(self._storage, self._name, rank, file, token)
        except UnusableCheckpointError as error:
            return self._problem(file, error)

    def _problem(self, file: FileEntry, error: CkptKitError) -> FileProblem:
        """Make the problem of a document; add the digests if they are what is wrong."""
        data = self._bytes(file.key)
        digest = digest_of(data) if data is not None else file.digest
        if digest == file.digest or file.key not in self._listed:
            return FileProblem(file.key, str(error))
        return FileProblem(file.key, str(error), (), file.digest, digest)

    def _bytes(self, key: str) -> bytes | None:
        """Return the file's bytes; None if they cannot be read."""
        try:
            return self._storage.read(key, min(self._listed.get(key, 0), MAX_DOCUMENT_BYTES))
        except FileNotFoundError:
            return b""
        except CorruptCheckpointError:
            return None


class _Files:
    """Verifies files, a few at once, and each of them once, however many checkpoints share it.

    After `stop`, which an error or Ctrl-C calls, the rest is not needed: what it returns means nothing then.
    """

    def __init__(self, storage: Storage, report: Callable[[int], None], at_once: int) -> None:
        self._storage = storage
        self._report = report
        self._at_once = at_once
        self._window_bytes = min(storage.window_bytes, _WINDOW_BYTES)
        self._locks: dict[tuple[str, int, str], threading.Lock] = {}
        self._known: dict[tuple[str, int, str], FileProblem | None] = {}
        self.is_stopped = False

    @property
    def count(self) -> int:
        return len(self._known)

    def stop(self) -> None:
        self.is_stopped = True

    def problems(self, shards: Sequence[tuple[ShardEntry, int | None]]) -> list[FileProblem]:
        """Return the problems of the ``shards``, each with its size if a listing showed it."""
        problems = each_of(shards, lambda listed: self._prove(*listed), threads=self._at_once, few=1, stop=self.stop)
        return [problem for problem in problems if problem is not None]

    def _prove(self, shard: ShardEntry, listed_bytes: int | None) -> FileProblem | None:
        key = (shard.key, shard.size_bytes, shard.digest)
        with self._locks.setdefault(key, threading.Lock()):
            if key not in self._known:
                # A second time if there is a problem, as `ckptkit.checkpoint.reread.reread_if_corrupt` does.
                self._known[key] = self._examine(shard, listed_bytes) and self._examine(shard, listed_bytes)
            return self._known[key]

    def _examine(self, shard: ShardEntry, listed_bytes: int | None) -> FileProblem | None:
        names = tuple(tensor.name for tensor in shard.tensors)
        if listed_bytes not in (None, shard.size_bytes):
            return _problem_of(shard, f"{shard.key} has {listed_bytes} bytes, expected {shard.size_bytes}", names)
        hasher = xxhash.xxh3_128()
        blocks = BlockDigests(shard.blocks.size_bytes) if shard.blocks is not None else None
        try:
            for data in self._pieces(shard):
                hasher.update(data)
                if blocks is not None:
                    blocks.update(data)
        except FileNotFoundError:
            return _problem_of(shard, f"{shard.key} is missing", names)
        except (EOFError, CorruptCheckpointError) as error:  # it is too short, or the disk cannot read it
            return _problem_of(shard, str(error), names)
        digest = hasher.hexdigest()
        wrong = _wrong_blocks(shard, blocks)
        if digest == shard.digest and not wrong:
            return None
        if wrong:
            names = tuple(tensor.name for tensor in shard.tensors if _lies_in(tensor, shard, wrong))
        message = f"{shard.key} has the digest {digest}, expected {shard.digest}"
        if digest == shard.digest:
            message = f"{shard.key} matches its digest, but not the digests of its blocks"
        return _problem_of(shard, message, names, shard.digest, digest)

    def _pieces(self, shard: ShardEntry) -> Iterator[memoryview]:
        """Yield the file in order; raise EOFError if it ends too early."""
        window = memoryview(bytearray(min(self._window_bytes, shard.size_bytes)))
        at = 0
        while True:  # reads at least once: this tells whether an empty file exists
            if self.is_stopped:
                raise EOFError(f"{shard.key} was not read to its end")
            part = window[: shard.size_bytes - at]
            count = self._storage.read_into(shard.key, [part], at)
            if count < len(part):
                raise EOFError(f"{shard.key} ends at byte {at + count}, expected {shard.size_bytes}")
            yield part
            at += count
            self._report(count)
            if at == shard.size_bytes:
                return


def _problem_of(shard: ShardEntry, message: str, names: tuple[str, ...], *digests: str) -> FileProblem:
    return FileProblem(shard.key, f"{message} (in it: {some(names)})" if names else message, names, *digests)


def _wrong_blocks(shard: ShardEntry, computed: BlockDigests | None) -> frozenset[int]:
    if shard.blocks is None or computed is None:
        return frozenset()
    pairs = zip(shard.blocks.digests, computed.result().digests, strict=True)
    return frozenset(number for number, (expected, digest) in enumerate(pairs) if expected != digest)


def _lies_in(tensor: TensorEntry, shard: ShardEntry, blocks: frozenset[int]) -> bool:
    """Return whether a byte of ``tensor`` lies in one of the ``blocks``."""
    if shard.blocks is None or not tensor.size_bytes:
        return False
    size = shard.blocks.size_bytes
    last = (tensor.offset_bytes + tensor.size_bytes - 1) // size
    return any(tensor.offset_bytes // size <= block <= last for block in blocks)
