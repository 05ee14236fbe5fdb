"""Cells that are random and still resume exactly; the facade is `ckptkit.nn`."""
