"""Copies runs and checkpoints to another root; `inventory` lists the source's checkpoints, `destination` the target."""
