"""Provides random cells that resume exactly: `Dropout`, and `replace_dropout` for an existing network.

Needs MindSpore; the facade loads it at its first use. Main thread only.
"""

from ckptkit.mindspore.nn.dropout import Dropout, replace_dropout

__all__ = ["Dropout", "replace_dropout"]
