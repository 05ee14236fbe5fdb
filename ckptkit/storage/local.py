"""Stores a run root in a local (or locally mounted) file system.

What was written, created or deleted stays so after a power loss: the file is fsynced first, and then the directories
that name it, up to the mount point. ``create`` is atomic (``link()``), and no file is ever overwritten. A file, a name
or a folder whose fsync failed is removed again (``docs/adr/0004``). The files in ``.reserve/`` are there to be deleted
on a full disk, so that a start can still ``create`` what it needs. The root may be a link; links below it are listed
and removed as files, and never followed. Any thread may call it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ckptkit.errors import StorageError
from ckptkit.storage.direct import DirectWriter
from ckptkit.storage.local_files import (
    NO_ROOM,
    past_stale,
    read_all,
    read_file,
    refuse_dangling,
    refuse_links,
    storage_errors,
)
from ckptkit.storage.protocol import Listing, Storage, walk_folders
from ckptkit.storage.system_calls import SYSTEM, hide, show
from ckptkit.storage.written_stream import ByteStream, SizedStream

_log = logging.getLogger("ckptkit")

LARGE_BYTES = 1 << 20

# Small enough that the digest finds the bytes in the processor's cache; 1 to 4 MiB are equally fast.
WINDOW_BYTES = 2 << 20

RESERVE = ".reserve"  # never listed
_RESERVED = "0123"  # a document and a void marker take three files at once where hard links count, as on tmpfs
_RESERVED_BYTES = 8 << 10

_FOLDER_TRIES = 5
_MOST_EMPTIED = 5  # times that another process empties a folder between two calls
_MOST_KNOWN = 256  # folders: a save makes a few, which retention removes later
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")  # the file of an unfinished create


class LocalStorage:
    """Stores files below ``root``, which is created at the first write."""

    is_remote = False  # even a network file system is written through this machine's cache
    window_bytes = WINDOW_BYTES

    def __init__(self, root: str | os.PathLike[str], *, large_files: DirectWriter | None = None) -> None:
        self._root = Path(os.path.abspath(os.path.expanduser(root)))
        self.url = str(self._root)
        self._durable: set[Path] = set()
        self._has_written = False
        self._large_files = large_files or DirectWriter()

    def probe(self) -> None:
        """Do nothing: a start writes its first file before training, which is the same check."""

    def list(self, folder: str, prefix: str = "") -> Listing:
        with storage_errors("list", self._root / folder):
            refuse_links(self._root, folder)
            return past_stale(lambda: _entries(self._root / folder, prefix))

    def walk(self, prefix: str) -> Mapping[str, int]:
        return walk_folders(self.list, prefix)

    def read(self, key: str, max_bytes: int) -> bytes:
        def whole(descriptor: int) -> bytes:
            # At least one byte, so that reading a folder fails instead of returning nothing.
            data = bytearray(min(os.fstat(descriptor).st_size, max_bytes) + 1)
            return bytes(data[: read_all(descriptor, [memoryview(data)], 0)])

        return read_file(self._root, key, whole)

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        return read_file(self._root, key, lambda descriptor: read_all(descriptor, buffers, offset_bytes))

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        """Write a new file and fsync it and its directories; an error leaves nothing of it."""
        path = self._root / key
        source = SizedStream(stream, size_bytes, path)
        self._reserve()
        with storage_errors("write", path):
            descriptor = hide(self._open_new(path))
        try:
            with _closing(descriptor, path):
                if source.left_bytes < LARGE_BYTES:
                    data = memoryview(bytearray(source.left_bytes))
                    source.fill(data)
                    with storage_errors("write", path):
                        SYSTEM.write_all(descriptor, data)
                else:
                    self._large_files.write(descriptor, source, path)
                source.expect_end()
                with storage_errors("write", path):
                    SYSTEM.fsync(descriptor)
            with storage_errors("write", path):
                SYSTEM.fsync_folder(path.parent)
        except BaseException:
            # The page cache may hold all of it while the disk does not, and reading it would not show that.
            with contextlib.suppress(OSError):
                SYSTEM.unlink(path)
            raise

    def create(self, key: str, data: bytes) -> None:
        """Publish ``data`` at ``key`` unless it exists, by tmp + fsync + link; on a full disk, the reserve is used."""
        path = self._root / key
        with storage_errors("create", path):
            while True:
                try:
                    return self._create(path, data)
                except OSError as error:
                    # Whoever fills the disk would use up the reserve in a few saves that fail.
                    if error.errno not in NO_ROOM or self._has_written or not self._release():
                        raise

    def _create(self, path: Path, data: bytes) -> None:
        self._make_folder(path.parent)
        is_new = not os.path.lexists(path) and _link_new(path, data)
        try:
            # Also if the file exists: others rely on the answer "exists", so it must be durable.
            SYSTEM.fsync_folder(path.parent)
        except OSError:
            if is_new:
                _remove(path)
            raise
        if not is_new:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))

    def _reserve(self) -> None:
        self._has_written = True
        with contextlib.suppress(OSError):  # nothing depends on it, and the write that follows says what is wrong
            for name in sorted({*_RESERVED} - self.list(RESERVE).files.keys()):
                self._make_folder(self._root / RESERVE)
                _link_new(self._root / RESERVE / name, secrets.token_bytes(_RESERVED_BYTES))  # zeros may take no room

    def _release(self) -> bool:
        """Delete one file of the reserve; return whether there was one."""
        with contextlib.suppress(OSError):
            for name in self.list(RESERVE).files:
                _remove(self._root / RESERVE / name)
                return True
        return False

    def delete(self, keys: Sequence[str]) -> None:
        """Remove ``keys`` and the folders below the first level that become empty."""
        for folder in {key.rpartition("/")[0] for key in keys}:
            refuse_links(self._root, folder)
        paths = [self._root / key for key in keys]
        for path in paths:
            with storage_errors("delete", path):
                _remove(path)
        # Deepest first, so that a folder that loses its last folder is removed, too.
        for parent in sorted({path.parent for path in paths}, key=lambda path: len(path.parts), reverse=True):
            with storage_errors("delete", parent):
                self._fsync_or_remove(parent)

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        """Remove temporary files of killed creates, and folders that stayed empty; returns how many."""
        folder, _, start = prefix.rpartition("/")
        files, empty = [], []
        with storage_errors("list", self._root / folder):
            refuse_links(self._root, folder)
            for path, folders, names in os.walk(self._root / folder, onerror=_refuse_unlisted):  # follows no link
                at = Path(path).relative_to(self._root).as_posix()
                if Path(path) == self._root / folder:
                    folders[:] = [name for name in folders if name.startswith(start)]
                below = "" if at == "." else f"{at}/"
                targets = {name: f"{below}{match[1]}" for name in names if (match := _TEMPORARY.fullmatch(name))}
                files += [f"{below}{name}" for name, key in targets.items() if key.startswith(prefix) and is_dead(key)]
                if "/" in at and not folders and not names and is_dead(below):
                    empty.append(self._root / path)
        self.delete(files)
        for gone in empty:
            with storage_errors("delete", gone):
                self._fsync_or_remove(gone)
        return len(files) + len(empty)

    def _fsync_or_remove(self, folder: Path) -> None:
        emptied = 0
        while len(folder.relative_to(self._root).parts) > 1:
            try:
                SYSTEM.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError as error:
                if _has_entries(folder):
                    break
                emptied += 1  # by another process, since the call
                if error.errno != errno.ENOTEMPTY or emptied > _MOST_EMPTIED:
                    raise
                continue
            folder = folder.parent
        while folder.is_dir():
            # Another process may have removed it since: then its parent.
            with contextlib.suppress(FileNotFoundError):
                SYSTEM.fsync_folder(folder)
                return
            folder = folder.parent

    def _open_new(self, path: Path) -> int:
        for _ in range(_FOLDER_TRIES - 1):
            # Another process may remove the empty folder between the two calls.
            with contextlib.suppress(FileNotFoundError):
                self._make_folder(path.parent)
                return SYSTEM.open_new(path)
        self._make_folder(path.parent)
        return SYSTEM.open_new(path)

    def _make_folder(self, folder: Path) -> None:
        if folder not in self._durable:
            refuse_links(self._root, folder.relative_to(self._root).as_posix())
        missing: list[Path] = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        self._durable.difference_update(missing)
        if len(self._durable) > _MOST_KNOWN:
            self._durable.clear()  # each forgotten folder costs one more fsync
        # The process that made it may have died before its fsync, and a shell's mkdir does not fsync.
        if folder not in self._durable:
            self._fsync_names(folder)
            self._durable.add(folder)
        for folder in reversed(missing):
            try:
                SYSTEM.mkdir(folder)
            except FileExistsError as error:
                if not folder.is_dir():
                    refuse_dangling(folder)
                    # A file is in the folder's place. FileExistsError would mean that a create lost its race.
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
            # The new name must be durable before anything below it.
            try:
                SYSTEM.fsync_folder(folder.parent)
            except OSError:
                with contextlib.suppress(OSError):
                    SYSTEM.rmdir(folder)
                raise
            self._durable.add(folder)

    def _fsync_names(self, folder: Path) -> None:
        """Make every name on the path to ``folder`` durable, both as given and with symbolic links resolved."""
        for end in {folder, folder.resolve()}:
            for path in (end, *end.parents):
                if os.path.ismount(path):
                    break
                try:
                    SYSTEM.fsync_folder(path.parent)
                except PermissionError:
                    if self._root in path.parents:
                        raise
                    # This user may be allowed to traverse a folder above the root, but not to open it.


class RootLock:
    """Keeps two programs of one machine from uploading from the same local root at once; other roots have no lock.

    A training holds the lock together with other trainings, which fence each other (`ckptkit.run.ownership`); a program
    that uploads in its place holds it alone. The kernel releases the lock with the last process that has it, also after
    SIGKILL (flock(2)). It keeps no other machine away.
    """

    def __init__(self, storage: Storage) -> None:
        self._path = None if storage.is_remote or not os.path.isabs(storage.url) else storage.url
        self._descriptor: int | None = None

    def share(self) -> None:
        """Hold the lock together with other trainings; waits for a program that holds it alone, until it has ended."""
        try:
            if self._path is not None:
                fcntl.flock(self._open(self._path), fcntl.LOCK_SH)
        except OSError as error:  # a file system without locks: nobody can hold it alone there
            _log.info("the folder %s cannot be locked: %s", self._path, error)

    def take_alone(self) -> bool:
        """Hold the lock alone, if nobody else holds it; returns whether it is held now."""
        if self._path is None:
            raise StorageError("only a local folder can be locked")
        try:
            fcntl.flock(self._open(self._path), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise StorageError(f"could not lock the folder {self._path}: {error}") from error
        return True

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process has the same descriptor, and keeps it open
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()

    def _open(self, path: str) -> int:
        if self._descriptor is None:
            with storage_errors("open", path):
                self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._descriptor


def _link_new(path: Path, data: bytes) -> bool:
    """Publish ``data`` at ``path`` unless it exists; returns whether ``path`` was free."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with os.fdopen(SYSTEM.open_new(temporary), "wb", buffering=0) as file:
            SYSTEM.write_all(file.fileno(), memoryview(data))
            SYSTEM.fsync(file.fileno())
        # rename() would replace the file of another process; link() fails instead.
        SYSTEM.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        _remove(temporary)
    return True


@contextlib.contextmanager
def _closing(descriptor: int, path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        show(descriptor)
        with contextlib.suppress(OSError):  # a network file system fails again here; the first error says more
            os.close(descriptor)
        raise
    show(descriptor)
    with storage_errors("write", path):
        os.close(descriptor)


def _refuse_unlisted(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # it was removed, or never existed
        raise error


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        SYSTEM.unlink(path)


def _has_entries(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):  # another process may have removed it since
        return False


def _entries(folder: Path, prefix: str) -> Listing:
    folders: set[str] = set()
    files: dict[str, int] = {}
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        refuse_dangling(folder)
        return Listing()
    with entries:
        for entry in entries:
            if not entry.name.startswith(prefix) or entry.name == RESERVE:
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.add(entry.name)
                continue
            # A file that vanishes between the two calls was deleted, and a listing may omit it.
            with contextlib.suppress(FileNotFoundError):
                files[entry.name] = entry.stat(follow_symlinks=False).st_size
    return Listing(frozenset(folders), files)
