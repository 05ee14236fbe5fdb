"""Reads the values of a training's Python objects.

`digest` digests one value, `start` those that each start of a script makes, and `changed` finds those that a training
changes although no code that was read changes them; `roots` says where it begins to look.
"""
