"""Defines the bytes of a run: file names, documents, shards and events (``docs/format.md``).

No module here does I/O: it converts documents to bytes and back. `ckptkit.checkpoint` and `ckptkit.run` decide who
writes them, and in which order.
"""
