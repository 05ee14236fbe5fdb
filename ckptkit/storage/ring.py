"""Keeps a run at the machines that train it, by `Ring`: each file at two of them.

Each machine has a server, such as one for S3 over its memory. The files of a rank lie at the server of its machine and
at the next one; all others lie at the first two. So no file is lost with one machine, its memory and its disk.

Guarantees: once a write or a create has returned, both copies are durable. A file is read wherever it lies, so that at
the next start servers may be exchanged, left out, or come in another order; `Ring.probe` gives the first two servers
the documents that they lack. That a file is absent is said by every server: one that cannot be reached is an error.
Does not: copy the shards of a lost machine again; until the next commit they lie once. Does not know a server that was
left out and comes back with files that were removed since. Any thread may call it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from ckptkit.core.parallel import each_of
from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.storage.lease import LEASE, PROBE
from ckptkit.storage.protocol import Listing, Storage
from ckptkit.storage.source import ByteStream

_T = TypeVar("_T")
_RANK = re.compile(r"/rank-([0-9]{5,})/")  # the folder of a rank's shards; see docs/format.md
_COMMIT = re.compile(r"checkpoints/a([0-9]{6})-[^/]*/COMMIT")
_MAX_BYTES = 1 << 26  # of a file that is created at once
_SHARD = ".safetensors"


class Ring:
    """Combines one server of each machine into one `ckptkit.storage.Storage`.

    Args:
        servers: Of each machine, in the order of the ranks on them.
        ranks_per_machine: How many ranks each machine has.

    Raises:
        ValueError: If there is no server, or ``ranks_per_machine`` is not a number of at least 1.
    """

    def __init__(self, servers: Sequence[Storage], ranks_per_machine: int = 1) -> None:
        if not servers or not isinstance(ranks_per_machine, int) or ranks_per_machine < 1:
            raise ValueError(
                f"a ring takes at least one server and ranks_per_machine of at least 1, got {len(servers)} servers "
                f"and {ranks_per_machine!r}"
            )
        self._servers = tuple(servers)
        self._ranks_per_machine = ranks_per_machine

    @property
    def url(self) -> str:
        """The run root at each server."""
        return self._servers[0].url

    @property
    def is_remote(self) -> bool:
        """Whether any server is remote."""
        return any(server.is_remote for server in self._servers)

    @property
    def window_bytes(self) -> int:
        """The largest of the servers."""
        return max(server.window_bytes for server in self._servers)

    def probe(self) -> None:
        """Probe all servers, and give the first two the documents that they lack, such as after one was replaced.

        Raises:
            StorageError: If a server cannot be reached or written, or two have different documents of one name.
        """

        def look(server: Storage) -> tuple[Storage, Mapping[str, int]]:
            server.probe()
            return server, server.walk("")

        there = self._each(look)
        decisive = _decisive({key for _, files in there for key in files})
        for key in sorted({key for _, files in there for key in files if _is_document(key)}):
            having = [(server, files[key]) for server, files in there if key in files]
            lacking = [server for server in self._homes(key) if all(server is not one for one, _ in having)]
            if len({size for _, size in having}) > 1:
                raise self._separated(key, [server for server, _ in having])
            if lacking or key in decisive:
                self._agree(key, having[0][1], [server for server, _ in having], lacking)

    def _agree(self, key: str, size_bytes: int, having: Sequence[Storage], lacking: Sequence[Storage]) -> None:
        """Compare what servers have under a key, and give it to those that lack it."""
        try:
            data = self.read(key, size_bytes)
        except FileNotFoundError:
            return  # another job has removed it since
        there = [self._content(server, key, data) for server in having]
        if any(content not in (None, data) for content in there):
            raise self._separated(key, having)
        for server in lacking:
            self._complete(server, key, data)
        if lacking and all(self._content(server, key, data) is None for server in having):
            for server in lacking:
                server.delete([key])  # removed meanwhile, and must not come back

    def _separated(self, key: str, having: Sequence[Storage]) -> StorageError:
        places = ", ".join(str(self._servers.index(server) + 1) for server in having)
        return StorageError(
            f"{key} is not the same at servers {places} of the {len(self._servers)} of the ring {self.url}: two jobs "
            "went on separately, or a start was made without some of them. Leave out those that are behind, or empty "
            "them if they are to serve again"
        )

    def list(self, folder: str, prefix: str = "") -> Listing:
        """List the folder at all servers."""
        each = self._each(lambda server: server.list(folder, prefix))
        files = {name: size for one in each for name, size in one.files.items()}
        return Listing(frozenset().union(*(one.folders for one in each)), files)

    def walk(self, prefix: str) -> Mapping[str, int]:
        """Walk all servers."""
        each = self._each(lambda server: server.walk(prefix))
        return {key: size for one in each for key, size in one.items()}

    def read(self, key: str, max_bytes: int) -> bytes:
        """Read from the first server that has the file: the machine's own, then the next, then any."""
        return self._first(key, lambda server: server.read(key, max_bytes))

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        """Read as `read` does."""
        return self._first(key, lambda server: server.read_into(key, buffers, offset_bytes))

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        """Write the file at its machine, and then copy it to the next one."""
        own, *others = self._homes(key)
        with self._naming(own):
            own.write(key, stream, size_bytes)
        for server in others:
            copy = _Stored(own, key)
            try:
                with self._naming(server):
                    server.write(key, copy, size_bytes)
            except StorageError:
                if copy.problem is None:
                    raise
                with self._naming(own):
                    raise copy.problem from None

    def create(self, key: str, data: bytes) -> None:
        """Create the file at its first server, which decides a race, and then at the second one.

        Raises:
            FileExistsError: If any server has it; both of its servers have it then.
            StorageError: If it is unknown whether both have it.
        """
        first, *others = self._homes(key)
        there = self._each(lambda server: None if server is first else _content_of(server, key, data))
        if any(content not in (None, data) for content in there):
            self._take_back(first, key, data)
            raise FileExistsError(key)
        try:
            with self._naming(first):
                first.create(key, data)
        except FileExistsError:
            self._spread(key)
            raise
        for server in others:
            if not self._complete(server, key, data):
                self._take_back(first, key, data)
                raise FileExistsError(key)

    def _take_back(self, first: Storage, key: str, data: bytes) -> None:
        """Give a file to the job with other servers that was faster; an earlier try may have left ours at the first."""
        if self._content(first, key, data) == data:
            with self._naming(first):
                first.delete([key])
        self._spread(key)

    def _spread(self, key: str) -> None:
        """Give a file that exists to both of its servers, since its creator may have been interrupted between them."""
        with contextlib.suppress(FileNotFoundError):
            data = self.read(key, _MAX_BYTES)
            for server in self._homes(key):
                self._complete(server, key, data)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the files at all servers."""
        self._each(lambda server: server.delete(keys))

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        """Clear what is unfinished at all servers."""
        return sum(self._each(lambda server: server.clear_unfinished(prefix, is_dead)))

    def _homes(self, key: str) -> Sequence[Storage]:
        """Return the servers that get a file: those of its machine and of the next one, or the first two."""
        rank = _RANK.search(key)
        at = int(rank[1]) // self._ranks_per_machine if rank is not None else 0
        count = len(self._servers)
        return tuple(self._servers[(at + beside) % count] for beside in range(min(2, count)))

    def _first(self, key: str, read: Callable[[Storage], _T]) -> _T:
        homes = self._homes(key)
        problem: CorruptCheckpointError | StorageError | None = None
        for server in (*homes, *(one for one in self._servers if one not in homes)):
            try:
                with self._naming(server):
                    return read(server)
            except FileNotFoundError:
                continue
            except (CorruptCheckpointError, StorageError) as error:
                problem = problem or error
        raise problem if problem is not None else FileNotFoundError(key)

    def _content(self, server: Storage, key: str, like: bytes) -> bytes | None:
        """Return `_content_of`, with errors that name the server."""
        with self._naming(server):
            return _content_of(server, key, like)

    def _complete(self, server: Storage, key: str, data: bytes) -> bool:
        """Create a file unless it is there; return whether it has this content then."""
        try:
            with self._naming(server):
                server.create(key, data)
        except FileExistsError:
            return self._content(server, key, data) == data
        return True

    def _each(self, act: Callable[[Storage], _T]) -> Sequence[_T]:
        """Return what each server answers; servers on a network are asked at once."""

        def ask(server: Storage) -> _T:
            with self._naming(server):
                return act(server)

        return each_of(self._servers, ask, few=1 if self.is_remote else len(self._servers))

    @contextlib.contextmanager
    def _naming(self, server: Storage) -> Iterator[None]:
        """Say of an error at which server it came, and what can be done."""
        try:
            yield
        except StorageError as error:
            if len(self._servers) == 1:
                raise
            raise StorageError(
                f"at server {self._servers.index(server) + 1} of the {len(self._servers)} of a ring: {error}. If its "
                "machine is gone, leave its endpoint out, or give that of the machine in its place"
            ) from error


class _Stored:
    """Gives the bytes of a file of a storage as a stream.

    Attributes:
        problem: Why it could not be read.
    """

    def __init__(self, storage: Storage, key: str) -> None:
        self._storage = storage
        self._key = key
        self._at = 0
        self.problem: StorageError | None = None

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill ``buffer`` with the next bytes of the file."""
        try:
            count = self._storage.read_into(self._key, [buffer], self._at)
        except StorageError as error:
            self.problem = error
            raise
        except FileNotFoundError as error:
            self.problem = StorageError(f"{self._key} was removed while it was copied to another machine")
            raise self.problem from error
        self._at += count
        return count


def _content_of(server: Storage, key: str, like: bytes) -> bytes | None:
    """Return what a server has under a key, or enough to tell it from ``like``; None if it has nothing."""
    try:
        return server.read(key, len(like))
    except FileNotFoundError:
        return None


def shows_unfinished(storage: Storage) -> bool:
    """Return whether a file may be seen before it is as durable as when its write or create has returned.

    A local file system shows a name before its folder is fsynced, and a ring a file that lies at one machine.
    """
    return not storage.is_remote or isinstance(storage, Ring)


def _is_document(key: str) -> bool:
    return not key.endswith(_SHARD) and key not in (LEASE, PROBE)


def _decisive(keys: Collection[str]) -> Collection[str]:
    """Return the documents that say whose the run is: of the newest attempt, and of each that has a COMMIT."""
    attempts = sorted(key for key in keys if key.startswith("attempts/"))
    return {*attempts[-1:], *(f"attempts/{found[1]}.json" for key in keys if (found := _COMMIT.fullmatch(key)))}
