"""Holds a run at several homes, a root and its mirrors: presents them as one storage, and opens attempts over all.

Attempts are numbered over all homes and have the same document at each. A start looks at all, chooses from all, reads
the nearest copy, and creates the document at the farthest home first, which fences every other job with this home. If
two homes went on separately, that is an error and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NoReturn

from ckptkit.checkpoint.commit import create_once, list_attempts
from ckptkit.core.contents import Contents
from ckptkit.errors import CorruptCheckpointError, ResumeError, StorageError
from ckptkit.format.documents import AttemptDocument, Commit, RunDocument, decode, decode_commit, encode
from ckptkit.format.layout import ATTEMPTS, COMMIT, RUN, CheckpointName, attempt_key, parse_attempt
from ckptkit.run.attempt import Leader, Opened, Opening, open_attempt
from ckptkit.run.index import Documents, Index
from ckptkit.run.ownership import read_attempt, read_run, refuse_unfinished
from ckptkit.run.resolve import LATEST
from ckptkit.storage import Listing, Storage


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
        documents: list[bytes] = []
        # Other machines use the farthest home's run.json.
        for root in reversed(self._roots) if key == RUN else self._roots:
            data = b""  # a file that cannot be read is one that does not parse
            try:
                data = root.read(key, max_bytes)
                if _counts(key, data):
                    return data
                documents.append(data)
            except FileNotFoundError:
                continue
            except CorruptCheckpointError:
                documents.insert(0, data)  # before a void COMMIT: this folder may have been a checkpoint
        if not documents:
            raise FileNotFoundError(key)
        return documents[0]

    def create(self, key: str, data: bytes) -> None:
        """Create a file at each home, the farthest first; on return all have it with this content."""
        number = parse_attempt(key.removeprefix(f"{ATTEMPTS}/"))
        for root in reversed(self._roots):
            # First this home gets the attempts before this one: a later start compares the highest number that two
            # homes both have, and concludes that all lower ones agree. A nearer home gets them only now: with another
            # job's, but without this one, a start there alone would seem to follow that job.
            for other in self._roots:
                if number is not None and other is not root:
                    _bring_documents(other, root, range(1, number))
            if create_once(root, key, data) != data:
                raise FileExistsError(f"{key} exists at {root.url}")

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the files at all homes, to undo `create`; each home has its own retention."""
        for root in reversed(self._roots):
            root.delete(keys)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError("several homes together only support reading and creating documents")

    read_into = write = clear_unfinished = _refuse


def _counts(key: str, data: bytes) -> bool:
    """Return whether ``data`` need not be compared with another home's; raise if a document does not parse."""
    if key.endswith(f"/{COMMIT}"):
        return isinstance(decode_commit(data, key), Commit)
    if key == RUN or key.startswith(f"{ATTEMPTS}/"):
        decode(data, RunDocument if key == RUN else AttemptDocument, key)
    return True


def share_documents(local: Storage, mirror: Storage, numbers: range) -> None:
    """Bring to each root what `_bring_documents` brings from the other.

    Retention, and a start with one root only, can then follow the lineage as far as it goes there.
    """
    _bring_documents(local, mirror, numbers)
    _bring_documents(mirror, local, numbers)


def _bring_documents(source: Storage, target: Storage, numbers: range) -> None:
    """Copy to ``target`` ``run.json`` and the documents of the attempts ``numbers`` that only ``source`` has.

    The ``run.json`` of a copy stays away from a root without the document that ends the copy: it would be taken for an
    unfinished one.
    """
    there, here = list_attempts(source), list_attempts(target)
    _agree(source, target, (here & there).intersection(numbers))
    for document in documents_of(source, sorted((there - here).intersection(numbers))):
        content = create_once(target, attempt_key(document.attempt), encode(document))
        other = None if content == encode(document) else read_attempt(target, document.attempt)
        if other is not None:
            raise _separate(source, document, target, other)
    run = read_run(source)
    if run and (run.copied_from is None or run.copied_from.last_attempt in list_attempts(target)):
        create_once(target, RUN, encode(run))


def refuse_separate(local: Storage, mirror: Storage) -> None:
    """Raise ResumeError unless both roots hold the same run, or one of them is empty."""
    indexes = [Index(local), Index(mirror)]
    ours, theirs = (index.documented for index in indexes)
    runs = [read_run(root) for root in (local, mirror)]
    for index, run in zip(indexes, runs, strict=True):
        refuse_unfinished(index.storage, index, run)
    common = _agree(local, mirror, ours & theirs)
    ids = {run.run_id for run in runs if run is not None}
    if not common and ours and theirs and len(ids) > 1:
        raise ResumeError(
            f"{local.url} and its mirror {mirror.url} hold two different runs, according to their {RUN}. Give each "
            "run its own mirror, or start with an empty local root to continue from the mirror. Nothing was written."
        )
    # Each root may have gone on by itself: by a commit of an attempt above the common ones that only it knows.
    alone = [sorted(number for number in own if number > common) for own in (ours - theirs, theirs - ours)]
    if all(alone):
        documents = [*map(_first_committed, indexes, alone)]
        if documents[0] and documents[1]:
            raise _separate(local, documents[0], mirror, documents[1])


def _first_committed(index: Index, numbers: Sequence[int]) -> AttemptDocument | None:
    with_commit = (number for number in numbers if any(map(index.is_committed, index.names_of(number))))
    return next(iter(documents_of(index.storage, with_commit)), None)


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
    later = sorted((number for number in index.attempts if newest is None or number > newest.attempt), reverse=True)
    document = next(iter(documents_of(there, later)), None)  # that attempt looked at all before it
    parent = CheckpointName.parse(document.parent or "") if document else None
    is_chosen = newest is not None and (opening.checkpoint != LATEST or (document and document.branch is not None))
    if parent is not None and not is_chosen and not index.is_committed(parent):
        raise StorageError(
            f"the run at {there.url} continued from {parent}, which is only at the mirror {away}, and the mirror "
            "cannot be reached. Starting without the mirror would set it aside. Start again when the mirror can be "
            "reached, or name an older checkpoint, if there is one, with checkpoint=."
        )
