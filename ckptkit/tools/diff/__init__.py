"""Compares two checkpoints: `checkpoints` leads, `leaf` and `statistics` compare tensors, `state` the rest."""
