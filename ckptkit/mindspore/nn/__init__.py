"""Provides random cells that resume exactly; the facade is `ckptkit.nn`."""
