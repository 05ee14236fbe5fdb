"""Records what training does for ``ckptkit report``: `curves` gathers `values`, and `recorder` writes events."""
