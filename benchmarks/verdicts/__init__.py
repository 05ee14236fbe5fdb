"""Measures how often `ckptkit doctor` is right about scripts of which the truth is known."""
