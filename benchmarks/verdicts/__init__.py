"""Measures how often `ckptkit doctor` is right about scripts whose truth is known: ``python -m benchmarks.verdicts``."""
