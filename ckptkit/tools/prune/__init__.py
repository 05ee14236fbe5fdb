"""Removes checkpoints by a policy: `plan` decides and says why, `prune` removes."""
