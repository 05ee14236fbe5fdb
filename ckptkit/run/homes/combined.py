"""Presents both roots of a run as one storage.

Guarantees: it has the files of either root, so lineages, branches and
parents are those of the whole run. Of two documents under one key, the one that parses counts. A real COMMIT counts
before a void one, which only says that the folder at that root never became a checkpoint. A file is created at the
mirror first, which is the fence between jobs with different local roots, and then byte for byte the same at the local
root. An error of either root is an error. Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ckptkit.checkpoint.commit import create_once, read_commit
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.codec import decode, decode_commit
from ckptkit.format.documents import AttemptDocument, Commit, RunDocument
from ckptkit.format.layout import ATTEMPTS, COMMIT, RUN, CheckpointName
from ckptkit.storage import ByteStream, Listing, Storage


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
