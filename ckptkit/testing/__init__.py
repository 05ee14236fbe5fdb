"""Provides faults, contracts and comparisons for tests of ckptkit and of code that is built on it."""
