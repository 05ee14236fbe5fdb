"""Tells what is committed from one walk of ``checkpoints/``: no COMMIT is read to learn that it is one.

Guarantees: the answer is that of reading each COMMIT, but for one thing: a void marker alone in its folder is taken
for one by its size, since nothing is there that could be listed, restored or removed. Sealed documents and void
markers are canonical to the byte, so a void has one size and a COMMIT is always larger. It does not prove a COMMIT
sound: that is `ckptkit.checkpoint.open`. One look at the run, which grows stale; any single thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from ckptkit.checkpoint.commit import read_commit
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import Commit, encode
from ckptkit.format.layout import CHECKPOINTS, COMMIT, CheckpointName, checkpoints_prefix
from ckptkit.run.index import VOID_BYTES, Index
from ckptkit.storage import Storage

_SOME = "0" * 32  # digests and tokens are of one length


def commit_bytes(manifest_bytes: int) -> int:
    """The size of a sound COMMIT that vouches for a manifest of ``manifest_bytes``."""
    return len(encode(Commit(token=_SOME, manifest_digest=_SOME, manifest_size_bytes=manifest_bytes).sealed()))


class Folders:
    """What lies in the checkpoint folders.

    Args:
        storage: The run root.
        attempt: Whose folders; None for all.

    Attributes:
        names: Of all folders that hold a file, in order.
    """

    def __init__(self, storage: Storage, attempt: int | None = None) -> None:
        self._storage = storage
        self._files = _grouped(storage.walk(f"{CHECKPOINTS}/{checkpoints_prefix(attempt) if attempt else ''}"))
        self._doubtful: dict[CheckpointName, bool] = {}
        self.names = tuple(sorted(self._files))

    def files(self, name: CheckpointName) -> Mapping[str, int]:
        """Sizes of the files of ``name`` by their paths in its folder."""
        return self._files.get(name, {})

    def is_uncommitted(self, name: CheckpointName) -> bool:
        """Whether the folder has no COMMIT, neither a real nor a void one."""
        return COMMIT not in self.files(name)

    def may_be_void_with_data(self, name: CheckpointName) -> bool:
        """Whether a file lies beside a COMMIT of the size of a void marker."""
        files = self.files(name)
        return files.get(COMMIT) == VOID_BYTES and len(files) > 1

    def is_bare_void(self, name: CheckpointName) -> bool:
        """Whether a COMMIT of the size of a void marker is all that the folder holds."""
        return self.files(name) == {COMMIT: VOID_BYTES}

    def is_committed(self, name: CheckpointName) -> bool:
        """Whether the folder has a COMMIT that is not void; one that does not parse counts."""
        if self.may_be_void_with_data(name):
            if name not in self._doubtful:
                self._doubtful[name] = self._is_real(name)
            return self._doubtful[name]
        return self.files(name).get(COMMIT, VOID_BYTES) != VOID_BYTES

    def shows_end_of(self, attempt: int) -> bool:
        """Whether an attempt without a commit can be told from one whose commits are away.

        Either a folder of its own is there, which is void, or two commits of later ones, which do without it. Else
        ``checkpoints/`` may be an empty mount point, and what it needs is needed again.
        """
        newest = list(islice(filter(self.is_committed, reversed(self.names)), 2))
        return any(name.attempt == attempt for name in self.names) or (
            len(newest) == 2 and all(name.attempt > attempt for name in newest)
        )

    def _is_real(self, name: CheckpointName) -> bool:
        try:
            return isinstance(read_commit(self._storage, name), Commit)
        except CorruptCheckpointError:
            return True


class Survey(Index):
    """One look at a whole run that reads next to no COMMIT; it costs more pages of listing than an `Index`.

    Attributes:
        folders: What the walk found.
    """

    folders: Folders

    def is_committed(self, name: CheckpointName) -> bool:
        """As `Index.is_committed`, from the walk."""
        return self.folders.is_committed(name)

    def _list_names(self) -> tuple[CheckpointName, ...]:
        self.folders = Folders(self._storage)
        return self.folders.names


def _grouped(sizes: Mapping[str, int]) -> dict[CheckpointName, dict[str, int]]:
    folders: dict[str, dict[str, int]] = {}
    for key, size_bytes in sizes.items():
        folder, _, file = key.partition("/")[2].partition("/")
        folders.setdefault(folder, {})[file] = size_bytes
    return {name: files for folder, files in folders.items() if (name := CheckpointName.parse(folder)) is not None}
