"""Shows the history of a run on one page; `read_story` reads it, `page_of` draws it.

Guarantees: reads a run and never writes to it. The page is one file that needs no network.
"""
