"""Holds a run at several homes, a root and its mirrors: presents them as one storage, and opens attempts over all.

Attempts are numbered over all homes and have the same document at each. A start looks at all, chooses from all, reads
the nearest copy, and creates the document at the farthest home first, which fences every other job with this home. If
two homes went on separately, that is an error and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, islice
from typing import TypeVar

from ckptkit.checkpoint.commit import create_once, list_attempts
from ckptkit.core.contents import Contents
from ckptkit.errors import CorruptCheckpointError, ResumeError, StorageError
from ckptkit.format.documents import AttemptDocument, Commit, RunDocument, decode, decode_commit, encode
from ckptkit.format.layout import ATTEMPTS, COMMIT, RUN, CheckpointName, attempt_key, parse_attempt
from ckptkit.run.attempt import Leader, Opened, Opening, open_attempt
from ckptkit.run.index import Documents, Index
from ckptkit.run.ownership import read_attempt, read_run, refuse_unfinished
from ckptkit.run.resolve import LATEST
from ckptkit.storage import ByteStream, Listing, Storage

_T = TypeVar("_T")


class Homes:
    """Combines the homes of a run into one `ckptkit.storage.Storage`, to look at all and to create small files."""

    def __init__(self, roots: Sequence[Storage]) -> None:
        self._roots = tuple(roots)

    @property
    def url(self) -> str:
        nearest, *others = (root.url for root in self._roots)
        return f"{nearest} with the mirror{'s' if others[1:] else ''} {' and '.join(others)}" if others else nearest

    @property
    def is_remote(self) -> bool:
        return any(root.is_remote for root in self._roots)

    @property
    def window_bytes(self) -> int:
        return self._roots[0].window_bytes

    def copies(self, name: CheckpointName) -> Sequence[Storage]:
        """Return the homes where ``name`` is committed, nearest first; a COMMIT that does not parse counts."""
        return [root for root in self._roots if Documents(root).has_commit(name)]

    def probe(self) -> None:
        """Probe the nearest home only: the manager has already probed the others."""
        self._roots[0].probe()

    def list(self, folder: str, prefix: str = "") -> Listing:
        listings = [root.list(folder, prefix) for root in self._roots]
        files = {name: size for listing in reversed(listings) for name, size in listing.files.items()}
        return Listing(frozenset().union(*(listing.folders for listing in listings)), files)

    def walk(self, prefix: str) -> Mapping[str, int]:
        return {key: size for root in reversed(self._roots) for key, size in root.walk(prefix).items()}

    def read(self, key: str, max_bytes: int) -> bytes:
        """Read from the nearest home that has the file; of several documents, prefer one that parses."""
        parse = _parser_of(key)
        if parse is None:
            return self._first(lambda root: root.read(key, max_bytes))
        documents: list[bytes] = []
        # Other machines use the farthest home's run.json.
        for root in reversed(self._roots) if key == RUN else self._roots:
            data = b""  # a document that cannot be read is one that does not parse
            try:
                data = root.read(key, max_bytes)
                if parse(data, key):
                    return data
                documents.append(data)
            except FileNotFoundError:
                continue
            except CorruptCheckpointError:
                documents.insert(0, data)  # before a void COMMIT: this folder may have been a checkpoint
        if not documents:
            raise FileNotFoundError(key)
        return documents[0]

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        return self._first(lambda root: root.read_into(key, buffers, offset_bytes))

    def _first(self, read: Callable[[Storage], _T]) -> _T:
        for root in self._roots[:-1]:
            try:
                return read(root)
            except (FileNotFoundError, CorruptCheckpointError):
                continue
        return read(self._roots[-1])

    def create(self, key: str, data: bytes) -> None:
        """Create a file at each home, the farthest first; on return all have it with this content."""
        if key.startswith(f"{ATTEMPTS}/"):
            # A home must get the attempts that ran without it before this one: a later start compares the highest
            # number that two homes both have, and concludes that all lower ones agree.
            for near, far in combinations(self._roots, 2):
                _bring_up_to_date(near, far, below=key)
        for root in reversed(self._roots):
            if create_once(root, key, data) != data:
                raise FileExistsError(f"{key} exists at {root.url}")

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        raise NotImplementedError("several homes together only support reading and creating documents")

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the files at all homes, to undo `create`; each home has its own retention."""
        for root in reversed(self._roots):
            root.delete(keys)

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        raise NotImplementedError("several homes together only support reading and creating documents")


def _parser_of(key: str) -> Callable[[bytes, str], bool] | None:
    if key == RUN:
        return lambda data, key: decode(data, RunDocument, key) is not None
    if key.startswith(f"{ATTEMPTS}/"):
        return lambda data, key: decode(data, AttemptDocument, key) is not None
    if key.endswith(f"/{COMMIT}"):
        return lambda data, key: isinstance(decode_commit(data, key), Commit)
    return None


def share_documents(local: Storage, mirror: Storage, attempt: AttemptDocument) -> None:
    """Copy to each root ``run.json`` and the attempt documents up to ``attempt`` that only the other root has.

    Retention, and a start with one root only, can then follow the lineage as far as it goes there. The ``run.json`` of
    a copy stays away from a root without the document that ends the copy: it would be taken for an unfinished one.
    """
    here, there = list_attempts(local), list_attempts(mirror)
    up_to = range(1, attempt.attempt + 1)
    _copy_documents(local, mirror, sorted((here - there).intersection(up_to)))
    _copy_documents(mirror, local, sorted((there - here).intersection(up_to)))
    for source, target in ((mirror, local), (local, mirror)):
        run = read_run(source)
        if run and (run.copied_from is None or run.copied_from.last_attempt in list_attempts(target)):
            create_once(target, RUN, encode(run))


def refuse_separate(local: Storage, mirror: Storage) -> None:
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
        ours, theirs = read_attempt(local, number), read_attempt(mirror, number)
        if ours is None or theirs is None:
            continue
        if ours.token == theirs.token:
            return number  # opened over both roots, or shared later: so all lower ones agree
        raise _separate(local, ours, mirror, theirs)
    return 0


def _refuse_two_histories(
    local: Storage, mirror: Storage, ours: Iterable[int], theirs: Iterable[int], *, above: int
) -> None:
    """Raise ResumeError if each root has a commit of an attempt ``above`` the common ones that only it knows."""
    alone = [sorted(number for number in numbers if number > above) for numbers in (ours, theirs)]
    if not all(alone):
        return
    documents: list[AttemptDocument] = []
    for root, numbers in zip((local, mirror), alone, strict=True):
        index = Index(root)
        with_commit = (number for number in numbers if any(map(index.is_committed, index.names_of(number))))
        documents += islice(documents_of(root, with_commit), 1)
    if len(documents) > 1:
        raise _separate(local, documents[0], mirror, documents[1])


def _bring_up_to_date(local: Storage, mirror: Storage, below: str) -> None:
    """Create at the mirror the documents of the attempts that were opened locally since it was last up to date."""
    here, there = list_attempts(local), list_attempts(mirror)
    common = max(here & there, default=0)
    last = parse_attempt(below.rpartition("/")[2])
    _agree(local, mirror, (n for n in here & there if last is None or n < last))
    _copy_documents(local, mirror, sorted(n for n in here - there if common < n and (last is None or n < last)))


def _copy_documents(source: Storage, target: Storage, numbers: Iterable[int]) -> None:
    for document in documents_of(source, numbers):
        content = create_once(target, attempt_key(document.attempt), encode(document))
        if content != encode(document):
            other = read_attempt(target, document.attempt)
            if other is not None:
                raise _separate(source, document, target, other)


def _separate(local: Storage, ours: AttemptDocument, mirror: Storage, theirs: AttemptDocument) -> ResumeError:
    other = "" if ours.attempt == theirs.attempt else f"attempt {theirs.attempt} "
    return ResumeError(
        f"the run continued separately at {local.url} and at its mirror {mirror.url}: attempt {ours.attempt} was "
        f"begun on {ours.host} at {ours.created_at} and {other}on {theirs.host} at {theirs.created_at}. Decide which "
        "one continues, and start with it and a new, empty folder in the other's place (as root= or mirror=). Nothing "
        "was changed."
    )


def documents_of(storage: Storage, numbers: Iterable[int]) -> Iterable[AttemptDocument]:
    return (document for number in numbers if (document := read_attempt(storage, number)) is not None)


def open_homes(homes: Sequence[Storage], away: Sequence[str], opening: Opening, leader: Leader) -> Opened | Contents:
    for near, far in combinations(homes, 2):
        refuse_separate(near, far)
    roots = Homes(homes)
    if away:
        _refuse_lost(roots, " and ".join(away), opening)
    return open_attempt(roots, opening, leader, roots.copies)


def _refuse_lost(there: Storage, away: str, opening: Opening) -> None:
    """Raise StorageError if the run has a newer checkpoint than ``there``, which only the mirrors ``away`` can have."""
    index = Index(there)
    newest = next(filter(index.is_committed, reversed(index.names)), None)
    where = f"which is only at the mirror {away}, and the mirror cannot be reached"
    if newest is None:
        parent = next((document.parent for document in documents_of(there, index.attempts) if document.parent), None)
        if parent is not None:
            raise StorageError(
                f"the run at {there.url} continues from {parent}, {where}. Starting afresh would lose it. Start again "
                "when the mirror can be reached."
            )
    elif opening.checkpoint == LATEST:
        later = sorted((number for number in index.attempts if number > newest.attempt), reverse=True)
        document = next(iter(documents_of(there, later)), None)  # that attempt looked at all before it
        parsed = CheckpointName.parse(document.parent or "") if document and document.branch is None else None
        if parsed is not None and not index.is_committed(parsed):
            raise StorageError(
                f"the run at {there.url} continued from {parsed}, {where}. Continuing from an older checkpoint would "
                "set it aside. Start again when the mirror can be reached, or name a checkpoint with checkpoint=."
            )
