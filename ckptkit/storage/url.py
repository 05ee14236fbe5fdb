"""From what a user types as a run root to a `Storage`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fsspec.core import split_protocol

from ckptkit.errors import StorageError
from ckptkit.storage.local import LocalStorage
from ckptkit.storage.protocol import Storage


def open_storage(root: str | os.PathLike[str] | Storage, storage_options: Mapping[str, Any] | None = None) -> Storage:
    """Open a run root: a path, a ``file://`` URL, or a `Storage`, which is returned as it is.

    Raises:
        TypeError: If it is none of these.
        ValueError: If it is an empty text.
        StorageError: If the URL's scheme has no backend, or was given options that it does not take.
    """
    if isinstance(root, Storage):
        return root
    if not isinstance(root, str | os.PathLike):
        raise TypeError(f"a run root is a path, a URL or a Storage, got {type(root).__name__}")
    if not os.fspath(root):
        raise ValueError("the run root is empty; give a folder of its own for each run")
    scheme, path = split_protocol(os.fspath(root))
    if scheme not in (None, "file", "local"):
        raise StorageError(
            f"no storage for {scheme}:// in this version of ckptkit; give a local path (root was {root!r})"
        )
    if storage_options:
        raise StorageError(f"a local run root takes no storage_options, got {sorted(storage_options)}")
    return LocalStorage(path)
