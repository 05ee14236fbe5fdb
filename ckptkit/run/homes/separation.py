"""Finds out whether two homes of a run went on separately, and shares the documents of the run between them.

Each function compares one pair of homes: the nearer one is called local here. Guarantees: nothing is changed where they
went on separately. Threads: any thread may call `share_documents`; the other functions
belong to the training thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ckptkit.checkpoint.commit import create_once
from ckptkit.checkpoint.listing import list_attempts
from ckptkit.checkpoint.reading import read_document
from ckptkit.errors import CorruptCheckpointError, ResumeError
from ckptkit.format.document_json import encode
from ckptkit.format.documents import AttemptDocument
from ckptkit.format.layout import RUN, attempt_key, parse_attempt
from ckptkit.run.index import Index
from ckptkit.run.origin import read_run, refuse_unfinished
from ckptkit.storage import Storage


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
    """Raise ResumeError if each root has a commit of an attempt ``above`` the common ones that only it knows."""
    alone = [sorted(number for number in numbers if number > above) for numbers in (ours, theirs)]
    if not all(alone):
        return
    found: list[AttemptDocument] = []
    for root, numbers in zip((local, mirror), alone, strict=True):
        index = Index(root)
        with_commit = (number for number in numbers if any(map(index.is_committed, index.names_of(number))))
        found += islice(documents_of(root, with_commit), 1)
    if len(found) > 1:
        raise _separate(local, found[0], mirror, found[1])


def bring_up_to_date(local: Storage, mirror: Storage, below: str) -> None:
    """Create at the mirror the documents of the attempts that were opened locally since it was last up to date."""
    here, there = list_attempts(local), list_attempts(mirror)
    common = max(here & there, default=0)
    last = parse_attempt(below.rpartition("/")[2])
    _agree(local, mirror, (n for n in here & there if last is None or n < last))
    _copy_documents(local, mirror, sorted(n for n in here - there if common < n and (last is None or n < last)))


def _copy_documents(source: Storage, target: Storage, numbers: Iterable[int]) -> None:
    for document in documents_of(source, numbers):
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


def documents_of(storage: Storage, numbers: Iterable[int]) -> Iterable[AttemptDocument]:
    """Read the documents of ``numbers``, leaving out those that cannot be read."""
    return (document for number in numbers if (document := _document(storage, number)) is not None)


def _document(storage: Storage, number: int) -> AttemptDocument | None:
    key = attempt_key(number)
    try:
        document = read_document(storage, key, AttemptDocument)
    except (FileNotFoundError, CorruptCheckpointError):
        return None
    return document if document.attempt == number else None
