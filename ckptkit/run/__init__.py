"""Manages one run on storage: attempts, saves, what a start resumes from, retention (``docs/format.md``).

A save: `saver` checks the `ownership`, writes with `ckptkit.checkpoint`, commits, and calls `retention`. A start:
`index` lists the run, `takeover` tells whether its process lives, `resolve` orders the candidates, `attempt` applies
one in all ranks and creates the attempt document, and `retention` removes what earlier ones left; `root_and_mirrors`
does so with mirrors, which `upload` feeds.
"""
