"""Tells what is changed, and what answers, where the code or the memory behind a call is not read.

- `changes`: what calls change in objects of C and of Python's library.
- `beside`: what threads and tasks of `asyncio` do beside the loop.
- `answers`: what child processes, and the other ends of connections, keep.
- `libraries`: which functions of installed libraries need not be read.
"""
