"""One checkpoint on storage: from staged memory to COMMIT, and from COMMIT back into memory.

Out: `write` takes what `ckptkit.snapshot` staged, `digesting` digests it on the way, `commit` comes last. In: `open`
reads the documents, `verify` looks at sizes, `stream` proves every byte while it is read, `parts` cuts it for other
ranks. Onward: `transfer` moves one to another root. Which checkpoint, and whether a process may write one, is
`ckptkit.run`'s.
"""
