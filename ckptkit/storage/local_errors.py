"""Turns errors of a local file system into errors of a storage that say what to do. Any thread."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from ckptkit.errors import StorageError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL = " See `df -h`; a run needs less with keep=ck.KeepLatest(2)."
_HINTS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.ENOTDIR: " A part of that path is a file: give the run root a folder of its own.",
    errno.EACCES: " Let this user read and write there (`ls -ld {folder}` shows who may), or give another run root.",
    errno.EROFS: " It is mounted read-only: give another run root.",
    errno.ENOENT: " That folder cannot be created, or was deleted: check the path (`ls -ld {folder}`).",
}
_CALL = "failed_call"  # attribute of an OSError


@contextlib.contextmanager
def storage_errors(verb: str, path: Path | str) -> Iterator[None]:
    """Raise StorageError for errors of the file system; the absence that ``verb`` reports itself passes.

    Args:
        verb: What is done to ``path``; ``"read"`` may raise FileNotFoundError, ``"create"`` FileExistsError.
        path: The file or folder.
    """
    try:
        yield
    except StorageError:
        raise
    except (FileNotFoundError, FileExistsError) as error:
        refuse_dangling(Path(path))
        if (verb == "read" and isinstance(error, FileNotFoundError)) or (
            verb == "create" and isinstance(error, FileExistsError)
        ):
            raise
        raise _storage_error(verb, path, error) from error
    except OSError as error:
        raise _storage_error(verb, path, error) from error


@contextlib.contextmanager
def naming(call: str) -> Iterator[None]:
    """Let an OSError say that it comes from ``call``: a number means different things after different calls."""
    try:
        yield
    except OSError as error:
        vars(error)[_CALL] = call
        raise


def has_no_room(error: StorageError) -> bool:
    """Return whether a full disk or quota is why a file could not be written."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_ROOM


def _storage_error(verb: str, path: Path | str, error: OSError) -> StorageError:
    folder, call = Path(path).parent, vars(error).get(_CALL)
    hint = _HINTS.get(error.errno or 0, "").format(folder=folder)
    # File systems without hard links have no common error: CIFS gives EIO, others EXDEV, EMLINK, EINVAL or ENOENT.
    if call == "link" and (not hint or (error.errno == errno.ENOENT and folder.is_dir())):
        hint = (
            " ckptkit publishes with hard links, which this file system refuses;"
            " put the run on a file system that has them."
        )
    if call == "fsync" and error.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        hint = " This file system cannot make files durable; put the run on one that can."
    where = f"{call}: " if call else ""
    return StorageError(f"could not {verb} {path}: {where}{error.strerror or error}.{hint}")


def refuse_links(root: Path, key: str) -> None:
    """Raise StorageError if a part of ``key`` is a link: below ``root``, what is behind one is no part of the run."""
    path = str(root)
    for part in filter(None, key.split("/")):
        path = f"{path}/{part}"
        if os.path.islink(path):
            raise StorageError(
                f"{path} is a link to {os.readlink(path)}, and links inside of a run are not followed. Put what it "
                "leads to in its place, or remove it; to have a run on another disk, make a link of its whole folder."
            )


def refuse_dangling(path: Path) -> None:
    """Raise StorageError if ``path`` is absent because of a dangling link: the files behind it may still exist."""
    for one in (path, *path.parents):
        if one.is_symlink() and not one.exists():
            raise StorageError(
                f"{one} is a link to {os.readlink(one)}, which does not exist. Mount the disk that it points to; "
                "remove the link only if the data there is not needed."
            )
