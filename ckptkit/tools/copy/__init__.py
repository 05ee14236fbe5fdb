"""Copies runs and checkpoints to another root; `destination` examines what is there."""
