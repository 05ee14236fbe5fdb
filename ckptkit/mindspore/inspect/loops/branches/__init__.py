"""Tells which branches of code run: what a condition asks for and what a pattern takes.

It reads no statements itself: see `ckptkit.mindspore.inspect.loops.statements`.
"""
