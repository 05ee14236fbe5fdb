"""Verifies stored bytes against their digests: `run` a whole run, `checkpoint` one checkpoint, `files` their files."""
