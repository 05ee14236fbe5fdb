"""Walks the folders of a storage that cannot list by prefix at any depth. Runs in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable

from ckptkit.storage.protocol import Listing

_MOST_DEPTH = 8  # folders; a run has three. A file system that follows links may have folders without end.


def walk_folders(list_folder: Callable[[str, str], Listing], prefix: str) -> dict[str, int]:
    """Do the same as `ckptkit.storage.Storage.walk`, with one call of ``list_folder`` for each folder.

    Leaves out what lies deeper than any file of a run.
    """
    folder, _, start = prefix.rpartition("/")
    found: dict[str, int] = {}
    waiting = [(folder, start)]
    while waiting:
        folder, start = waiting.pop()
        below = f"{folder}/" if folder else ""
        listing = list_folder(folder, start)
        found.update({below + file: size for file, size in listing.files.items()})
        if below.count("/") < _MOST_DEPTH:
            waiting.extend((below + child, "") for child in listing.folders)
    return found
