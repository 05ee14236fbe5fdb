"""Presents all homes of a run, its root and its mirrors, as one storage.

Guarantees: it has the files of every home, so lineages, branches and parents are those of the whole run. Of several
documents under one key, one that parses counts. A real COMMIT counts before a void one, which only says that the folder
at that home never became a checkpoint. A file is created at the farthest home first, which is the fence between jobs
with other near homes, and then byte for byte the same at the nearer ones. An error of any home is an error.
Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ckptkit.checkpoint.commit import create_once, read_commit
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.document_json import decode, decode_commit
from ckptkit.format.documents import AttemptDocument, Commit, RunDocument
from ckptkit.format.layout import ATTEMPTS, COMMIT, RUN, CheckpointName
from ckptkit.storage import ByteStream, Listing, Storage

_T = TypeVar("_T")


class Homes:
    """Combines the homes of a run into one `ckptkit.storage.Storage`, to look at all and to create small files."""

    def __init__(self, roots: Sequence[Storage], before_create: Callable[[str], None] | None = None) -> None:
        self._roots = tuple(roots)
        self._before_create = before_create

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
        return [root for root in self._roots if _may_be_committed(root, name)]

    def probe(self) -> None:
        """Probe the nearest home only: `ckptkit.run.homes.opening.reach` has already probed the others."""
        self._roots[0].probe()

    def list(self, folder: str, prefix: str = "") -> Listing:
        each = [root.list(folder, prefix) for root in self._roots]
        files = {name: size for one in reversed(each) for name, size in one.files.items()}
        return Listing(frozenset().union(*(one.folders for one in each)), files)

    def walk(self, prefix: str) -> Mapping[str, int]:
        return {key: size for root in reversed(self._roots) for key, size in root.walk(prefix).items()}

    def read(self, key: str, max_bytes: int) -> bytes:
        """Read from the nearest home that has the file; of several documents, prefer one that parses."""
        parse = _parser_of(key)
        if parse is None:
            return self._first(lambda root: root.read(key, max_bytes))
        found: list[bytes] = []
        # Other machines use the farthest home's run.json.
        for root in reversed(self._roots) if key == RUN else self._roots:
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
        if self._before_create is not None:
            self._before_create(key)
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


def _may_be_committed(root: Storage, name: CheckpointName) -> bool:
    try:
        return isinstance(read_commit(root, name), Commit)
    except CorruptCheckpointError:
        return True


def _parser_of(key: str) -> Callable[[bytes, str], bool] | None:
    """Return a parser of the document ``key`` that says whether to prefer it to another copy; None for other files."""
    if key == RUN:
        return lambda data, key: decode(data, RunDocument, key) is not None
    if key.startswith(f"{ATTEMPTS}/"):
        return lambda data, key: decode(data, AttemptDocument, key) is not None
    if key.endswith(f"/{COMMIT}"):
        return lambda data, key: isinstance(decode_commit(data, key), Commit)
    return None
