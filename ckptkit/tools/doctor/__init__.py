"""Implements ``ckptkit doctor``: runs a user's script repeatedly and reports whether an interruption changes anything.

It starts processes and reads their traces; it imports no MindSpore.
"""
