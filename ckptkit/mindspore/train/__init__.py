"""Trains with gradient accumulation: `cell` is the train cell, of the graphs of `gradients` and `reduce`.

`micro_steps` checks that all counts agree, and `restored_k` decides the K with which a run continues.
"""
