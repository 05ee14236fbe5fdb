"""Tells what is changed, and what answers, where the code or the memory behind a call cannot be read.

`changes` has what calls change in objects of C and of Python's library; `beside` what threads and tasks of `asyncio` do
beside the loop; `answers` what child processes, and what is at the other end of a connection, keep.
"""
