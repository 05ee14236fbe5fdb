"""Removes checkpoints by a policy: `plan` decides and gives reasons, `prune` removes."""
