"""Tells ``ckptkit run`` what a training process does: `record` is the file, `heart` writes it."""
