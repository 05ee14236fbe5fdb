"""Tells what the seconds of a run went to, and which interval of saves pays (``docs/goodput.md``).

`lives` tells from events how each process lived, `history` reads the failures of earlier ones, `interval` chooses how
often to save, `spans` puts lives in order, `account` puts every second into a class, and `alternatives` compares
intervals. When a save begins belongs to `ckptkit.manager`; pages and tables belong to `ckptkit.tools` and
`ckptkit.cli`.
"""
