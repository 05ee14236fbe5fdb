"""Writes one checkpoint from staged memory up to COMMIT, reads it back into memory, and copies it to another root.

Write: `write`, `receipts`, and `commit` last. Read: `open` reads the documents, `shard_bytes` finds the bytes, `read`
verifies them on the way, `parts` and `resharded` cut leaves for other ranks. Copy: `transfer`.
"""
