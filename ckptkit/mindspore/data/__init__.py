"""Data positions: how training data gets back to exactly the next batch; `ckptkit.data` is the public face."""
