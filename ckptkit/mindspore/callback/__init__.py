"""Implements `CheckpointCallback`: the hooks of ``Model.train`` and ``Model.fit``, and the session of one training."""
