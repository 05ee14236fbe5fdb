"""Training with gradient accumulation: the cell, its micro-step and update, its counters, and who else counts.

`cell` runs `micro_step` for every batch and `update` at the end of a cycle; `reduce` sums over ranks. `step_counting`
proves that all who count agree.
"""
