"""Flips one bit in live trainings, once, and lets ``ckptkit replay`` find it: ``python -m benchmarks.bit_flips``."""
