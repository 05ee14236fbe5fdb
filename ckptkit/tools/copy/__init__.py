"""Copies runs and checkpoints to another root: `inventory` says what there is, `destination` what is there already."""
