"""Measurements, run by hand: ``python -m tests.bench``. See `tests.bench.__main__`."""
