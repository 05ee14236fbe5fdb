"""Loops of one's own: what they carry, decide by, call and iterate over."""
