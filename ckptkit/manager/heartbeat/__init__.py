"""Records what a training process does, and shows it to ``ckptkit run``; `ckptkit.tools.supervisor` reads it."""
