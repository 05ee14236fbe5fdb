"""What a run went through, as one page for people: `read_story` reads it, `page_of` draws it.

Guarantees: reads a run and never writes to it. The page is one file that asks for nothing from any network.
"""
