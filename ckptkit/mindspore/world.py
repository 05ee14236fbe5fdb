"""`world`: the ranks of the job that this process is one of, as MindSpore's communication knows them.

Guarantees: without ``mindspore.communication.init()``, or with a group of one, it is `ckptkit.world.ALONE`. A gather
returns once every rank has called it, in GRAPH and PYNATIVE; it does not only enqueue. One whose peer has left raises
after about half a minute, when MindSpore gives up. Training thread only, and never within a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mindspore.communication import GlobalComm, get_group_size, get_rank
from mindspore.mint import distributed

from ckptkit.world import ALONE, World


def world() -> World:
    """The world as it is now; cheap, and a value."""
    if not initialized():
        return ALONE
    size = get_group_size()
    return Ranks(get_rank(), size) if size > 1 else ALONE


def initialized() -> bool:
    """Whether this process has joined a group, of one rank or more."""
    return bool(GlobalComm.INITED)


@dataclass(frozen=True)
class Ranks:
    """The default group of all ranks."""

    rank: int
    size: int

    def gather(self, message: str) -> Sequence[str]:
        """As `World`.

        MindSpore pickles what its ranks say to each other; only strings go in, and only ranks of this job, which run
        the same script, can say something.
        """
        said = [""] * self.size
        distributed.all_gather_object(said, message)  # ends with a read of what came, hence waits
        return tuple(said)
