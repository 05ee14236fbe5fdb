"""Records what training does for ``ckptkit report``: `curves` gathers numbers, `recorder` writes them as events."""
