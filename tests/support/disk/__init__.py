"""What a disk holds when the power goes: a recorder of all that changes it, and the states that its log allows.

`recorder` has the disk under a process, `model` what may lie on it after a cut, `cuts` which of that to look at;
`device` writes down what a real file system does.
"""

from .cuts import Keep, cuts, cuts_at, everything, nothing, some_cuts, zeros
from .device import Device, Epoch
from .model import Bytes, Cut, DiskTree, Log, Names, Node, Reported, Size, Sync, lay_out
from .recorder import CALLS, Disk

__all__ = [
    "CALLS",
    "Bytes",
    "Cut",
    "Device",
    "Disk",
    "DiskTree",
    "Epoch",
    "Keep",
    "Log",
    "Names",
    "Node",
    "Reported",
    "Size",
    "Sync",
    "cuts",
    "cuts_at",
    "everything",
    "lay_out",
    "nothing",
    "some_cuts",
    "zeros",
]
