"""Provides the ranks of this process's job, as MindSpore's communication knows them (`world`).

Guarantees: a gather returns once every rank has called it, in GRAPH and PYNATIVE; neither a gather nor a broadcast only
enqueues. If a peer has left, or on CPU is more than 30 s late, the call raises when MindSpore gives up. Training thread
only, and never within a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mindspore import Tensor
from mindspore.communication import GlobalComm, get_group_size, get_rank
from mindspore.mint import distributed

from ckptkit.core.process_group import ALONE, World


def world() -> World:
    """Return the present world, cheaply; `ALONE` without ``mindspore.communication.init()``, or in a group of one."""
    if not initialized():
        return ALONE
    size = get_group_size()
    return MindSporeWorld(get_rank(), size) if size > 1 else ALONE


def initialized() -> bool:
    """Return whether this process has joined a group, of one rank or more."""
    return bool(GlobalComm.INITED)


@dataclass(frozen=True)
class MindSporeWorld:
    """Implements the default group of all ranks."""

    rank: int
    size: int

    def gather(self, message: str) -> Sequence[str]:
        """See `World`; sends numbers, since MindSpore's own object collectives use pickle."""
        data = np.frombuffer(message.encode(), np.uint8)
        sizes = [int(size[0]) for size in self._all(np.array([data.size], np.int32))]
        padded = np.zeros(-(-max(sizes) // 4) * 4 or 4, np.uint8)
        padded[: data.size] = data
        texts = zip(self._all(padded.view(np.int32)), sizes, strict=True)
        return tuple(text.view(np.uint8)[:size].tobytes().decode() for text, size in texts)

    def broadcast(self, message: str) -> str:
        """See `World`; each rank holds at most one copy of the message."""
        data = np.frombuffer(message.encode() if self.rank == 0 else b"", np.uint8)
        size = int(self._from_rank_0(np.array([data.size], np.int32))[0])
        padded = np.zeros(-(-size // 4) * 4 or 4, np.uint8)
        padded[: data.size] = data
        return self._from_rank_0(padded.view(np.int32)).view(np.uint8)[:size].tobytes().decode()

    def _from_rank_0(self, mine: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        tensor = Tensor(mine)
        distributed.broadcast(tensor, 0)
        received: npt.NDArray[np.int32] = tensor.asnumpy().copy()  # waits: the call above only enqueues
        return received

    def _all(self, mine: npt.NDArray[np.int32]) -> list[npt.NDArray[np.int32]]:
        """Return the array of each rank, all of one shape; int32 is what every backend's collectives take."""
        received = [Tensor(np.zeros_like(mine)) for _ in range(self.size)]
        distributed.all_gather(received, Tensor(mine))
        return [tensor.asnumpy().copy() for tensor in received]  # waits: the call above only enqueues
