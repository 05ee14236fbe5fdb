"""Walks a storage that has folders, where one that has none would list by prefix. The threads are the callers'."""

from __future__ import annotations

from collections.abc import Callable

from ckptkit.storage.protocol import Listing


def walk_folders(list_folder: Callable[[str, str], Listing], prefix: str) -> dict[str, int]:
    """As `ckptkit.storage.Storage.walk`, by as many calls of ``list_folder`` as there are folders."""
    folder, _, start = prefix.rpartition("/")
    found: dict[str, int] = {}
    waiting = [(folder, start)]
    while waiting:
        folder, start = waiting.pop()
        below = f"{folder}/" if folder else ""
        listing = list_folder(folder, start)
        found.update({below + file: size for file, size in listing.files.items()})
        waiting.extend((below + child, "") for child in listing.folders)
    return found
