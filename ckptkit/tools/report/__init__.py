"""Shows the history of a run: on one page, as numbers, and to monitors. It never writes to the run."""
