"""Opens the `Storage` for a run root that a user typed.

ckptkit looks up its own table of schemes first, so that no other package's entry point can replace them. Every other
scheme goes to fsspec.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NoReturn
from urllib.parse import urlsplit

from ckptkit.errors import StorageError
from ckptkit.scrubber import learn_root, scrubbed
from ckptkit.storage.local import LocalStorage
from ckptkit.storage.protocol import Storage

_LOCAL = (None, "file", "local")
_S3 = ("s3", "s3a", "obs")


def open_storage(root: str | os.PathLike[str] | Storage, storage_options: Mapping[str, Any] | None = None) -> Storage:
    """Open a run root: a path, a URL, or a `Storage`, which is returned as it is. Sends nothing over a network.

    Raises:
        TypeError: If it is none of these.
        ValueError: If it is an empty text.
        StorageError: If no backend takes the URL's scheme, the URL names no folder, or the backend refuses an option.
    """
    if isinstance(root, Storage):
        return root
    if not isinstance(root, str | os.PathLike):
        raise TypeError(f"a run root is a path, a URL or a Storage, got {type(root).__name__}")
    text = os.fspath(root)
    if not text:
        raise ValueError("the run root is empty; give a folder of its own for each run")
    options = dict(storage_options or {})
    learn_root(text, options)  # before anything can fail
    with scrubbed():
        return _open(text, options)


def _open(text: str, options: dict[str, Any]) -> Storage:
    _refuse_one_slash(text)
    scheme, path = _split(text)
    if scheme in _LOCAL:
        if options:
            raise StorageError(
                f"{text} is a local run root, which takes no storage_options, got {sorted(options)}: leave them out, "
                "or give a URL such as s3://bucket/folder"
            )
        return LocalStorage(path)
    if scheme in _S3:
        try:
            from ckptkit.storage.s3.storage import open_s3
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith(("botocore", "urllib3")):
                raise
            raise StorageError(
                f"{scheme}://{path} needs botocore, which is not installed: pip install 'mindspore-ckptkit[s3]'"
            ) from error
        return open_s3(str(scheme), path, options)
    if scheme in ("http", "https"):
        _refuse_web(text)
    from ckptkit.storage.fsspec import open_generic

    return open_generic(text, options)


def is_bucket(root: str) -> bool:
    """Return whether a run root is in a bucket of S3 or OBS."""
    return _split(root)[0] in _S3


def is_same_place(url: str, other: str) -> bool:
    """Return whether the URLs of two storages are one place, also by a symbolic link, a second mount or two spellings.

    Endpoints are not part of a URL: what differs by its endpoint alone is one place here.
    """
    place, another = _place(url), _place(other)
    if place == another or "://" in place or "://" in another:
        return place == another
    try:
        return os.path.samefile(place, another)
    except OSError:
        return False  # one of them is yet to be made, or cannot be reached


def is_inside(url: str, other: str) -> bool:
    """Return whether the storage ``url`` lies in a folder of the storage ``other``, so that it is removed with that."""
    *folders, _ = accumulate(_place(url).split("/"), "{}/{}".format)
    return not is_same_place(url, other) and any(is_same_place(folder or "/", other) for folder in folders)


def _place(url: str) -> str:
    """Return the one spelling for all URLs of a place: without links, and with the first name of the scheme."""
    scheme, path = _split(url)
    if scheme in _LOCAL:
        return os.path.realpath(path)
    names: str | Sequence[str] = "s3" if scheme == "s3a" else str(scheme)
    if scheme not in _S3:
        from fsspec import get_filesystem_class

        with contextlib.suppress(ImportError, ValueError):  # a storage of the user's own
            names = get_filesystem_class(scheme).protocol
    return f"{names if isinstance(names, str) else names[0]}://{re.sub('/+', '/', path).strip('/')}"


def _split(text: str) -> tuple[str | None, str]:
    if "://" not in text and "::" not in text:
        return None, text  # do not import fsspec, which takes as long as a listing
    from fsspec.core import split_protocol

    scheme, path = split_protocol(text)
    return scheme, path


def _refuse_one_slash(text: str) -> None:
    """Raise StorageError if ``text`` is a URL that lacks one slash: it would be a folder on one machine's disk."""
    match = re.fullmatch(r"([a-z][a-z0-9+]+):/([^/].*)", text)
    if match is None or os.path.exists(text):
        return
    scheme, rest = match.groups()
    meant = f"/{rest}" if scheme in _LOCAL else f"{scheme}://{rest}"
    raise StorageError(
        f'{text} has one slash where a URL has two, and would be a folder on this machine: write "{meant}" (as a '
        f'string: pathlib.Path removes slashes), or "{os.path.abspath(text)}" for the folder'
    )


def _refuse_web(text: str) -> NoReturn:
    """Raise StorageError that says how to name a bucket, given an address as cloud consoles show it."""
    parts = urlsplit(text)
    scheme = "obs" if "obs." in parts.netloc or "huaweicloud" in parts.netloc else "s3"
    bucket, infix, host = parts.netloc.partition(f".{scheme}.")
    host, path = (f"{scheme}.{host}", f"{bucket}{parts.path}") if infix else (parts.netloc, parts.path.strip("/"))
    raise StorageError(
        f"{text} is a web address, and ckptkit cannot save there. If it is a bucket, write "
        f'CheckpointCallback("{scheme}://{path or "bucket/folder"}", '
        f'storage_options={{"endpoint_url": "{parts.scheme}://{host}"}})'
    )
