"""Holds a run at several homes: its root and its mirrors.

`combined` presents them as one storage, `separation` compares two histories, and `opening` opens an attempt over all.
`upload` copies commits from the root to one mirror, in ranks above 0 `part_upload` does, and `pace` bounds both.
"""
