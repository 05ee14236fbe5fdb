"""What a run looks like in bytes: names of files, documents, shards and events (``docs/format.md``).

Nothing here does I/O: documents go in and bytes come out, or the other way round. Who writes them, and in which order,
is `ckptkit.checkpoint` and `ckptkit.run`.
"""
