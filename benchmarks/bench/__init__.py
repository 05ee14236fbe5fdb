"""Measurements, run by hand: ``python -m benchmarks.bench``. See `benchmarks.bench.__main__`."""
