"""One run on storage, format version 1 and its protocol (design section 3, ``docs/format.md``).

A save goes through ``write`` (shards, rank file, manifest), ``commit`` (COMMIT, last) and ``retain`` (what may
go afterwards); ``save`` puts the three in order. A start goes through ``find`` (what is there), ``choose`` (candidates,
by ``lineage``), ``read`` and ``verify`` (documents and bytes); ``attempt`` puts them in order and fences earlier
starts, ``sweep`` removes what those left. ``catalogue`` lists checkpoints, from a ``survey`` where it must be cheap.
``names`` knows where everything lies.

With a mirror, ``mirrored`` opens an attempt over ``two_roots``, and ``uploader`` takes commits from one to the other.
"""
