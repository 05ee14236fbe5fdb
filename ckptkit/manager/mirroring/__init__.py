"""Keeps the mirrors of a run root up to date.

`chain` opens an attempt over all of them, and `uploads` copies each commit to one mirror in a thread of its own.
"""
