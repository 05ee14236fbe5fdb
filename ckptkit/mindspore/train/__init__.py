"""Trains with gradient accumulation: `cell` is the train cell, of the graphs of `gradients` and `reduce`.

`counting` checks that all counts of micro-steps agree, and `schedule` decides the K with which a run continues.
"""
