"""Writes one checkpoint from staged memory up to COMMIT, and reads it back into memory.

Write: `write` writes what `ckptkit.snapshot` staged, `digesting` computes the digests on the way, and `commit` comes
last. Read: `open` reads the documents, `verify` checks sizes, `stream` verifies every byte while it is read, and
`parts` cuts leaves for other ranks. Copy: `transfer` copies a checkpoint to another root. `ckptkit.run` decides which
checkpoint to use, and whether a process may write one.
"""
