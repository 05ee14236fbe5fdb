"""Faults, contracts and comparisons for tests of ckptkit and of what is built on it."""
