"""Turns errors of a local file system into errors of a storage that say what to do. Any thread."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from ckptkit.errors import StorageError

_FULL = " See `df -h`; a run needs less with keep=ck.KeepLatest(2)."
_HINTS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.ENOTDIR: " A part of that path is a file: give the run root a folder of its own.",
    errno.EACCES: " Let this user read and write there (`ls -ld {folder}` shows who may), or give another run root.",
    errno.EROFS: " It is mounted read-only: give another run root.",
    errno.ENOENT: " That folder cannot be created, or was deleted: check the path (`ls -ld {folder}`).",
}


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


def _storage_error(verb: str, path: Path | str, error: OSError) -> StorageError:
    hint = _HINTS.get(error.errno or 0, "").format(folder=Path(path).parent)
    if verb == "create" and error.errno in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP):  # from link()
        hint = (
            " ckptkit publishes with hard links, which this file system refuses;"
            " put the run on a file system that has them."
        )
    return StorageError(f"could not {verb} {path}: {error.strerror or error}.{hint}")


def refuse_dangling(path: Path) -> None:
    """Raise StorageError if ``path`` is absent because of a dangling link: the files behind it may still exist."""
    for one in (path, *path.parents):
        if one.is_symlink() and not one.exists():
            raise StorageError(
                f"{one} is a link to {os.readlink(one)}, which does not exist. Mount the disk that it points to; "
                "remove the link only if the data there is not needed."
            )
