"""Runs the ranks of a job as processes, without a framework: a launcher like msrun, and the world of a rank.

``python -m support.process_ranks N SCRIPT ...`` starts N ranks, which call `world`. As msrun does, it kills the others
once one has died, and returns 1; with ``--leave`` in front of N it leaves them, as shell scripts may. Rank 0 is
connected to each of the others. A gather that waits for a rank that is gone raises a `RankLostError`.
"""

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection

from ckptkit.core.process_group import ALONE, World
from support.thread_ranks import RankLostError


class ProcessWorld:
    """Connects this process to the other ranks; a `ckptkit.core.process_group.World`."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK_ID"]), int(os.environ["RANK_SIZE"])
        self._others = [Connection(int(one)) for one in os.environ["RANK_SOCKETS"].split(",")]

    def gather(self, message: str) -> Sequence[str]:
        try:
            if self.rank:
                self._others[0].send(message)
                return self._others[0].recv()
            said = [message, *(one.recv() for one in self._others)]
            for one in self._others:
                one.send(said)
        except (OSError, EOFError) as error:
            raise RankLostError(f"rank {self.rank} waits for a rank that is gone") from error
        return said

    def broadcast(self, message: str) -> str:
        return self.gather(message if self.rank == 0 else "")[0]


def world() -> World:
    return ProcessWorld() if "RANK_ID" in os.environ else ALONE


def fork_pair() -> ProcessWorld:
    """Fork a second rank from this process, which is rank 0 from then on and waits for the other at its end."""
    ends = socket.socketpair()
    child = os.fork()
    rank = int(child == 0)
    os.environ |= {"RANK_ID": str(rank), "RANK_SIZE": "2", "RANK_SOCKETS": str(ends[rank].detach())}
    ends[1 - rank].close()
    if child:
        atexit.register(os.waitpid, child, 0)
    return ProcessWorld()


def launcher(ranks: int, *script: str, leave: bool = False) -> list[str]:
    """Return the command that starts ``script`` in ``ranks``; needs `support.process.module_path`."""
    return [sys.executable, "-m", "support.process_ranks", *(["--leave"] if leave else []), str(ranks), *script]


def main(arguments: list[str]) -> int:
    """Start the ranks and wait for all; returns 1 if one failed."""
    leaves = arguments[0] == "--leave"
    size, *script = arguments[leaves:]
    pairs = [socket.socketpair() for _ in range(int(size) - 1)]
    ranks: dict[int, subprocess.Popen[bytes]] = {}
    for rank in range(int(size)):
        mine = [first.fileno() for first, _ in pairs] if rank == 0 else [pairs[rank - 1][1].fileno()]
        also = {"RANK_ID": str(rank), "RANK_SIZE": size, "RANK_SOCKETS": ",".join(map(str, mine))}
        process = subprocess.Popen([sys.executable, *script], env={**os.environ, **also}, pass_fds=mine)
        ranks[process.pid] = process
    for one in (end for pair in pairs for end in pair):
        one.close()  # a rank's death must close its connections
    failed = False
    while ranks:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        code = ranks.pop(ended.si_pid).wait()
        if code and not leaves:
            for other in ranks.values():
                other.kill()
        failed = failed or code != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
