"""Positions training data at exactly the next batch; the public module is `ckptkit.data`."""
