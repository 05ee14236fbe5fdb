"""Provides the ``ckptkit`` command line: one module per command, imported when the command runs.

Exit codes: 0 fine, 1 a problem was found, 2 the command was used wrongly, 3 the storage could not be reached.
"""

from ckptkit.cli.app import app

__all__ = ["app"]
