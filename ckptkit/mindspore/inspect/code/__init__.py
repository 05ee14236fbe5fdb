"""Reads code objects of Python.

`names` tells which variables code looks up, `bytecode` which objects it names and calls, and `control_flow` what may
run next.
"""
