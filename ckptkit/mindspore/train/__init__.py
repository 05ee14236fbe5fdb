"""Trains with gradient accumulation: the train cell, its graphs and its step counting.

`cell` runs `micro_step` for every batch and `update` at the end of a cycle; `reduce` sums over ranks. `step_counting`
chooses `own_counting` or `foreign_counting`, which check that all counts of micro-steps agree.
"""
