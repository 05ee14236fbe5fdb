"""Stores files: the `Storage` interface that a run needs, and its backends."""

from ckptkit.storage.local import LocalStorage, RootLock
from ckptkit.storage.protocol import Listing, Storage
from ckptkit.storage.url import is_inside, is_same_place, open_storage
from ckptkit.storage.written_stream import ByteStream

__all__ = ["ByteStream", "Listing", "LocalStorage", "RootLock", "Storage", "is_inside", "is_same_place", "open_storage"]
