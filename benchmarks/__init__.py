"""Measurements, run by hand: they judge nothing, so they are no tests. `tests/unit/benchmarks` tests that they run."""
