"""Holds a run on two roots.

`combined` presents both as one storage, `separation` compares their histories, `opening` opens an attempt over both,
and `upload` copies commits from the local root to the mirror.
"""
