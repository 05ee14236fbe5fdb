"""Opens an attempt of a run that lies on a local root and its mirror, and keeps the two consistent.

Attempts are numbered over both roots and have the same document on both, so a name means the same checkpoint on each.
The order: look at both roots; choose from both; read and apply (the copy at the local root first, then the copy of the
same checkpoint at the mirror, then an older checkpoint); create the document at the mirror, which fences every other
job with this mirror, then at the local root; list both again. Guarantees: if the two roots went on separately, that is
an error and no attempt is opened. A start that cannot reach the mirror does not take an emptied local root for a new
run.

`TwoRoots` presents both roots as one storage. Guarantees: it has the files of either root, so lineages, branches and
parents are those of the whole run. Of two documents under one key, the one that parses counts. A real COMMIT counts
before a void one, which only says that the folder at that root never became a checkpoint. A file is created at the
mirror first, which is the fence between jobs with different local roots, and then byte for byte the same at the local
root. An error of either root is an error.

Threads: any thread may use a `TwoRoots` or call `share_documents`; the other functions belong to the training thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from ckptkit.checkpoint.commit import create_once, read_commit
from ckptkit.checkpoint.listing import list_attempts
from ckptkit.errors import CorruptCheckpointError, ResumeError, StorageError
from ckptkit.format.codec import decode, decode_commit, encode
from ckptkit.format.documents import MAX_SEALED_BYTES, AttemptDocument, Commit, RunDocument
from ckptkit.format.layout import ATTEMPTS, COMMIT, RUN, CheckpointName, attempt_key, parse_attempt
from ckptkit.run.attempt import Opened, Opening, Target, open_attempt
from ckptkit.run.index import Index
from ckptkit.run.origin import read_run, refuse_unfinished
from ckptkit.storage import ByteStream, Listing, Storage

_log = logging.getLogger("ckptkit")


class TwoRoots:
    """Combines two roots into one `ckptkit.storage.Storage`, to look at both and to create small files.

    Args:
        local: The root that is read first.
        mirror: The root where files are created first.
        before_create: Called with the key before a file is created.
    """

    def __init__(self, local: Storage, mirror: Storage, before_create: Callable[[str], None] | None = None) -> None:
        self._local = local
        self._mirror = mirror
        self._before_create = before_create

    @property
    def url(self) -> str:
        """The URLs of both roots, for messages."""
        return f"{self._local.url} with the mirror {self._mirror.url}"

    @property
    def is_remote(self) -> bool:
        """Whether either root is remote."""
        return self._local.is_remote or self._mirror.is_remote

    @property
    def window_bytes(self) -> int:
        """The value of the local root, which is read first."""
        return self._local.window_bytes

    def copies(self, name: CheckpointName) -> Sequence[Storage]:
        """Return the roots where ``name`` is committed, local first; a COMMIT that does not parse counts."""
        return [root for root in (self._local, self._mirror) if _may_be_committed(root, name)]

    def probe(self) -> None:
        """Probe the local root only: `reach` has already probed the mirror, which costs requests."""
        self._local.probe()

    def list(self, folder: str, prefix: str = "") -> Listing:
        """List the folder at both roots."""
        one, other = self._local.list(folder, prefix), self._mirror.list(folder, prefix)
        return Listing(one.folders | other.folders, {**other.files, **one.files})

    def walk(self, prefix: str) -> Mapping[str, int]:
        """Walk both roots."""
        local = self._local.walk(prefix)
        return {**self._mirror.walk(prefix), **local}

    def read(self, key: str, max_bytes: int) -> bytes:
        """Read from the local root, else from the mirror; of two documents, prefer the one that parses."""
        roots = [self._local, self._mirror]
        parse = _parser_of(key)
        if parse is None:
            return _first(roots, key, max_bytes)
        if key == RUN:
            roots.reverse()  # other machines use the mirror's
        found: list[bytes] = []
        for root in roots:
            data = b""  # a document that cannot be read is one that does not parse
            try:
                data = root.read(key, max_bytes)
                if parse(data, key):
                    return data
                found.append(data)
            except FileNotFoundError:
                continue
            except CorruptCheckpointError:
                found.insert(0, data)  # before a void COMMIT: this folder may have been a checkpoint
        if not found:
            raise FileNotFoundError(key)
        return found[0]

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        """Read from the local root, else from the mirror."""
        try:
            return self._local.read_into(key, buffers, offset_bytes)
        except (FileNotFoundError, CorruptCheckpointError):
            return self._mirror.read_into(key, buffers, offset_bytes)

    def create(self, key: str, data: bytes) -> None:
        """Create a file at the mirror, then at the local root; on return both have it with this content.

        Raises:
            FileExistsError: If one of them has other content there.
            StorageError: If it is unknown whether both have it.
        """
        if self._before_create is not None:
            self._before_create(key)
        for root in (self._mirror, self._local):
            if create_once(root, key, data) != data:
                raise FileExistsError(f"{key} exists at {root.url}")

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        """Raise NotImplementedError: a checkpoint is written at one root and uploaded to the other."""
        raise NotImplementedError("two roots together only support reading and creating documents")

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the files at both roots, to undo `create`; each root has its own retention."""
        for root in (self._mirror, self._local):
            root.delete(keys)

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        """Raise NotImplementedError: unfinished writes are cleared at each root."""
        raise NotImplementedError("two roots together only support reading and creating documents")


def _may_be_committed(root: Storage, name: CheckpointName) -> bool:
    try:
        return isinstance(read_commit(root, name), Commit)
    except CorruptCheckpointError:
        return True


def _first(roots: Sequence[Storage], key: str, max_bytes: int) -> bytes:
    for root in roots[:-1]:
        try:
            return root.read(key, max_bytes)
        except (FileNotFoundError, CorruptCheckpointError):
            continue
    return roots[-1].read(key, max_bytes)


def _parser_of(key: str) -> Callable[[bytes, str], bool] | None:
    """Return a parser of the document ``key`` that says whether to prefer it to another copy; None for other files."""
    if key == RUN:
        return lambda data, key: decode(data, RunDocument, key) is not None
    if key.startswith(f"{ATTEMPTS}/"):
        return lambda data, key: decode(data, AttemptDocument, key) is not None
    if key.endswith(f"/{COMMIT}"):
        return lambda data, key: isinstance(decode_commit(data, key), Commit)
    return None


def open_mirrored(local: Storage, mirror: Storage, opening: Opening, target: Target) -> Opened:
    """Open the next attempt over both roots, as `ckptkit.run.attempt.open_attempt` does.

    Raises:
        ResumeError: If the two roots went on separately.
        StorageError: If one of them failed. Call `reach` first to find out whether the mirror can be used.
    """
    _refuse_separate(local, mirror)

    def complete_mirror(key: str) -> None:
        # The mirror must get the attempts that ran without it before this one: a later start compares the highest
        # number that both roots have, and concludes that all lower ones agree.
        if key.startswith(f"{ATTEMPTS}/"):
            _bring_up_to_date(local, mirror, below=key)

    roots = TwoRoots(local, mirror, complete_mirror)
    return open_attempt(roots, opening, target, roots.copies)


def reach(mirror: Storage) -> None:
    """Check that the mirror can be used.

    Raises:
        StorageError: If it cannot.
    """
    mirror.probe()
    mirror.list(ATTEMPTS)


def open_alone(local: Storage, mirror: Storage, opening: Opening, target: Target) -> Opened:
    """Open the next attempt at the local root only, because the mirror cannot be reached.

    Raises:
        StorageError: If the run has checkpoints, but none at the local root; or if the newest start continued from a
            checkpoint that only the mirror has, and committed nothing.
        CkptKitError: As `ckptkit.run.attempt.open_attempt`.
    """
    index = Index(local)
    if not any(map(index.is_committed, reversed(index.names))):
        for document in _documents(local, index.attempts):
            if document.parent is not None:
                raise StorageError(
                    f"the run at {local.url} continues from {document.parent}, which is only at the mirror "
                    f"{mirror.url}, and the mirror cannot be reached. Starting afresh would lose it. Start again "
                    "when the mirror can be reached."
                )
    elif opening.checkpoint == "latest":
        _refuse_older(local, mirror, index)
    return open_attempt(local, opening, target)


def _refuse_older(local: Storage, mirror: Storage, index: Index) -> None:
    """Raise StorageError if the newest start continued from a newer checkpoint than the local root has.

    Continuing from an older one would discard that checkpoint, and no attempt number would show it afterwards.
    """
    newest = next(name.attempt for name in reversed(index.names) if index.is_committed(name))
    later = sorted((number for number in index.attempts if number > newest), reverse=True)
    document = next(iter(_documents(local, later)), None)  # that attempt looked at all before it
    if document is None or document.branch is not None:
        return
    parent = CheckpointName.parse(document.parent or "")
    if parent is not None and not index.is_committed(parent):
        raise StorageError(
            f"the run at {local.url} continued from {parent}, which is only at the mirror {mirror.url}, and the "
            "mirror cannot be reached. Continuing from an older checkpoint would set it aside. Start again when the "
            "mirror can be reached, or name the checkpoint to continue from with checkpoint=."
        )


def share_documents(local: Storage, mirror: Storage, attempt: AttemptDocument) -> None:
    """Copy to each root ``run.json`` and the attempt documents up to ``attempt`` that only the other root has.

    Retention, and a start with one root only, can then follow the lineage as far as it goes there. The ``run.json`` of
    a copy stays away from a root without the document that ends the copy, such as one that is damaged at the other
    root: with it, that root would be taken for a copy that has not ended.

    Raises:
        StorageError: If one of the roots failed; the same call continues.
    """
    here, there = list_attempts(local), list_attempts(mirror)
    up_to = range(1, attempt.attempt + 1)
    _copy_documents(local, mirror, sorted((here - there).intersection(up_to)))
    _copy_documents(mirror, local, sorted((there - here).intersection(up_to)))
    for source, target in ((mirror, local), (local, mirror)):
        run = read_run(source)
        if run is None:
            continue
        if run.copied_from is None or run.copied_from.last_attempt in list_attempts(target):
            create_once(target, RUN, encode(run))


def _refuse_separate(local: Storage, mirror: Storage) -> None:
    """Raise ResumeError unless both roots hold the same run, or one of them is empty."""
    for root in (local, mirror):
        run = read_run(root)
        if run is not None and run.copied_from is not None:
            refuse_unfinished(root, Index(root), run)
    here, there = list_attempts(local), list_attempts(mirror)
    common = _agree(local, mirror, here & there)
    roots = () if common else (local, mirror)
    ids = {run.run_id for root in roots if (run := read_run(root)) is not None}
    if here and there and len(ids) > 1:
        raise ResumeError(
            f"{local.url} and its mirror {mirror.url} hold two different runs, according to their {RUN}. Give each "
            "run its own mirror, or start with an empty local root to continue from the mirror. Nothing was written."
        )
    _refuse_two_histories(local, mirror, here - there, there - here, above=common)


def _agree(local: Storage, mirror: Storage, numbers: Iterable[int]) -> int:
    """Return the highest readable of ``numbers``, 0 without one; raise ResumeError if its token differs."""
    for number in sorted(numbers, reverse=True):
        ours, theirs = _document(local, number), _document(mirror, number)
        if ours is None or theirs is None:
            continue
        if ours.token == theirs.token:
            return number  # opened over both roots, or shared later: so all lower ones agree
        raise _separate(local, ours, mirror, theirs)
    return 0


def _refuse_two_histories(
    local: Storage, mirror: Storage, ours: Iterable[int], theirs: Iterable[int], *, above: int
) -> None:
    """Raise ResumeError if each root has a commit of an attempt ``above`` the common ones that only it knows.

    Both gave the number after the last common one. A start without ``mirror=`` may have forgotten its own one, if that
    committed nothing, so that no number shows the difference any more.
    """
    alone = [sorted(number for number in numbers if number > above) for numbers in (ours, theirs)]
    if not all(alone):
        return
    found: list[AttemptDocument] = []
    for root, numbers in zip((local, mirror), alone, strict=True):
        index = Index(root)
        with_commit = (number for number in numbers if any(map(index.is_committed, index.names_of(number))))
        found += islice(_documents(root, with_commit), 1)
    if len(found) > 1:
        raise _separate(local, found[0], mirror, found[1])


def _bring_up_to_date(local: Storage, mirror: Storage, below: str) -> None:
    """Create at the mirror the documents of the attempts that were opened locally since it was last up to date.

    Raises:
        ResumeError: If another job has opened an attempt at the mirror since `_refuse_separate` looked, with the number
            of a local one. Once the new document is on both roots, nothing shows that any more.
    """
    here, there = list_attempts(local), list_attempts(mirror)
    common = max(here & there, default=0)
    last = parse_attempt(below.rpartition("/")[2])
    _agree(local, mirror, (n for n in here & there if last is None or n < last))
    _copy_documents(local, mirror, sorted(n for n in here - there if common < n and (last is None or n < last)))


def _copy_documents(source: Storage, target: Storage, numbers: Iterable[int]) -> None:
    for document in _documents(source, numbers):
        found = create_once(target, attempt_key(document.attempt), encode(document))
        if found != encode(document):
            other = _document(target, document.attempt)
            if other is not None:
                raise _separate(source, document, target, other)


def _separate(local: Storage, ours: AttemptDocument, mirror: Storage, theirs: AttemptDocument) -> ResumeError:
    other = "" if ours.attempt == theirs.attempt else f"attempt {theirs.attempt} "
    return ResumeError(
        f"the run continued separately at {local.url} and at its mirror {mirror.url}: attempt {ours.attempt} was "
        f"begun on {ours.host} at {ours.created_at} and {other}on {theirs.host} at {theirs.created_at}, each without "
        "the other. Decide which one continues, and start with it and a new, empty folder in the other's place "
        "(root= to continue from the mirror, mirror= to continue from the local root). Nothing was changed."
    )


def _documents(storage: Storage, numbers: Iterable[int]) -> Iterable[AttemptDocument]:
    """Read the documents of ``numbers``, leaving out those that cannot be read."""
    return (document for number in numbers if (document := _document(storage, number)) is not None)


def _document(storage: Storage, number: int) -> AttemptDocument | None:
    key = attempt_key(number)
    try:
        document = decode(storage.read(key, MAX_SEALED_BYTES), AttemptDocument, key)
    except (FileNotFoundError, CorruptCheckpointError):
        return None
    return document if document.attempt == number else None
