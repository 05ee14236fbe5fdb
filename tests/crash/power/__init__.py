"""Power loss: what may lie on a disk after a cut, and what a run makes of it."""
