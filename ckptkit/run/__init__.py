"""Manages one run on storage: attempts, saves, what a start resumes from, retention (``docs/format.md``).

A save: `saver` checks the `fence`, writes the files with `ckptkit.checkpoint`, commits, and calls `retention`.
A start: `index` lists the run, `lineage` follows parents, `resolve` orders the candidates, `attempt` applies one and
creates the attempt document, and `sweep` removes what earlier attempts left. `rank_protocol` does this for many ranks.
Ranks above 0 write their parts with `part_saver`.
With a mirror: `homes` opens the attempt over both roots and copies each commit to the mirror.
Besides: `catalog` lists checkpoints for users, `event_log` stores and reads events, `origin` reads ``run.json``,
`goodput` tells what the seconds of a run went to, and which interval of saves pays.
The files of one checkpoint belong to `ckptkit.checkpoint`; threads and the time of a save belong to `ckptkit.manager`.
"""
