"""Compares two checkpoints; start at `checkpoints`. `leaf` and `statistics` compare tensors, `state` the rest."""
