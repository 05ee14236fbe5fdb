"""A run that lies on two roots, seen as one while an attempt is opened: a local root and its mirror.

Guarantees: what either root has is there, so that lineages, branches and parents are those of the whole run; of two
documents under one key the one that is whole counts, and a real COMMIT counts before a void one, which only says that
this root's own folder never became a checkpoint. A file is created at the mirror first, which is the fence between
jobs with different local roots, and then, byte by byte the same, at the local root. An error of either root is an
error. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ckptkit.checkpoint.commit import create_once, read_commit
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import AttemptDocument, Commit, RunDocument, decode, decode_commit
from ckptkit.format.layout import ATTEMPTS, COMMIT, RUN, CheckpointName
from ckptkit.storage import ByteStream, Listing, Storage


class TwoRoots:
    """A `ckptkit.storage.Storage` over two others, for looking and for creating small files.

    Args:
        local: Read first.
        mirror: Created at first.
        before_create: Called with a key before a file is created.
    """

    def __init__(self, local: Storage, mirror: Storage, before_create: Callable[[str], None] | None = None) -> None:
        self._local = local
        self._mirror = mirror
        self._before_create = before_create

    @property
    def url(self) -> str:
        """Of both, for messages."""
        return f"{self._local.url} with the mirror {self._mirror.url}"

    @property
    def is_remote(self) -> bool:
        """Whether either is."""
        return self._local.is_remote or self._mirror.is_remote

    @property
    def window_bytes(self) -> int:
        """That of the local root, which is read first."""
        return self._local.window_bytes

    def copies(self, name: CheckpointName) -> Sequence[Storage]:
        """The roots where ``name`` is committed, the local one first; a COMMIT that does not parse counts."""
        return [root for root in (self._local, self._mirror) if _may_be_committed(root, name)]

    def probe(self) -> None:
        """Probe the local root: whoever decided to use the mirror has probed that, which costs requests."""
        self._local.probe()

    def list(self, folder: str, prefix: str = "") -> Listing:
        """What lies in the folder at either."""
        one, other = self._local.list(folder, prefix), self._mirror.list(folder, prefix)
        return Listing(one.folders | other.folders, {**other.files, **one.files})

    def walk(self, prefix: str) -> Mapping[str, int]:
        """Files of either."""
        local = self._local.walk(prefix)
        return {**self._mirror.walk(prefix), **local}

    def read(self, key: str, max_bytes: int) -> bytes:
        """The content at the local root, else at the mirror; of two documents the one that is whole."""
        roots = [self._local, self._mirror]
        parse = _parser_of(key)
        if parse is None:
            return _first(roots, key, max_bytes)
        if key == RUN:
            roots.reverse()  # the mirror's is what other machines go by
        found: list[bytes] = []
        for root in roots:
            data = b""  # what cannot be read is a document that does not parse
            try:
                data = root.read(key, max_bytes)
                if parse(data, key):
                    return data
                found.append(data)
            except FileNotFoundError:
                continue
            except CorruptCheckpointError:
                found.insert(0, data)  # before a void one: it may have been a checkpoint
        if not found:
            raise FileNotFoundError(key)
        return found[0]

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        """From the local root, else from the mirror."""
        try:
            return self._local.read_into(key, buffers, offset_bytes)
        except (FileNotFoundError, CorruptCheckpointError):
            return self._mirror.read_into(key, buffers, offset_bytes)

    def create(self, key: str, data: bytes) -> None:
        """Create a file at the mirror, then at the local root; on return both have it, with this content.

        Raises:
            FileExistsError: If one of them has another content there.
            StorageError: If it is not known to be at both.
        """
        if self._before_create is not None:
            self._before_create(key)
        for root in (self._mirror, self._local):
            if create_once(root, key, data) != data:
                raise FileExistsError(f"{key} exists at {root.url}")

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        """Refused: a checkpoint is written at one root and uploaded to the other."""
        raise NotImplementedError("two roots are only looked at, and documents are created there")

    def delete(self, keys: Sequence[str]) -> None:
        """Take back what was created; each root has a retention of its own."""
        for root in (self._mirror, self._local):
            root.delete(keys)

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        """Refused, as `delete`."""
        raise NotImplementedError("two roots are only looked at, and documents are created there")


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
    """What parses the document ``key`` and says whether it counts before another one; None for any other file."""
    if key == RUN:
        return lambda data, key: decode(data, RunDocument, key) is not None
    if key.startswith(f"{ATTEMPTS}/"):
        return lambda data, key: decode(data, AttemptDocument, key) is not None
    if key.endswith(f"/{COMMIT}"):
        return lambda data, key: isinstance(decode_commit(data, key), Commit)
    return None
