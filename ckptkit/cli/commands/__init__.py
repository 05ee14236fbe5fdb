"""Implements the commands of ``ckptkit``: one module for each, imported when the command runs."""
