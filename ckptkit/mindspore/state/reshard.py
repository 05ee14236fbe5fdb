"""Converts a checkpoint to another number of ranks, and decides the accumulation steps to continue with.

Guarantees: ranks x accumulation steps x micro-batch stays the same, or the restore is refused with the numbers. A
script may give K for the world that it is started in, or, as a constant, for the world in which its run began.
Changes nothing. Main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ckptkit.checkpoint.resharded import folded
from ckptkit.core.contents import Contents
from ckptkit.core.process_group import World
from ckptkit.errors import ResumeError
from ckptkit.mindspore.train.schedule import Worlds

_log = logging.getLogger("ckptkit")


def in_this_world(contents: Contents, world: World, recorded: Mapping[str, Any] | None, *, elastic: bool) -> Contents:
    """Return ``contents`` converted for a rank of ``world``; unchanged if the checkpoint has as many ranks."""
    if contents.world_size == world.size:
        return contents
    if not elastic:
        raise ResumeError(
            f"the checkpoint {contents.checkpoint} was made by {contents.world_size} ranks, this job has "
            f"{world.size}. Start {contents.world_size} ranks, or pass ranks=ckptkit.Ranks(elastic=True) to continue "
            f"with {world.size}, which keeps ranks x accumulation steps x micro-batch"
        )
    if recorded is None and not contents.progress.at_boundary:
        raise ResumeError(
            f"the checkpoint {contents.checkpoint} is in the middle of a cycle of a train cell that is not an "
            "AccumulationTrainCell, so it is unknown what it accumulated. Continue with "
            f'{contents.world_size} ranks, or from a checkpoint at a boundary (Saving(mid_cycle="align"))'
        )
    return folded(contents, world.size, world.rank, [k for _, k in (recorded or {}).get("steps") or ()])


def tell(before: Contents, after: Contents, worlds: Worlds, rank: int, *, positioned: bool) -> None:
    """Log what was folded, and what of it is not exact."""
    was, progress = before.progress, after.progress
    _log.warning(
        "%s was made by %d ranks and continues with %d: accumulation steps %d -> %d, micro-step %d -> %d, batches "
        "%d -> %d, so an update sees the same %d micro-batches. %s Not exact: what each rank has of its own, such "
        "as BatchNorm statistics and random state, comes from rank %d here (rank %% %d), so that %s%s.",
        *(after.checkpoint, worlds.before, worlds.now, was.accumulation_steps, progress.accumulation_steps),
        *(was.micro_step, progress.micro_step, was.batches_delivered, progress.batches_delivered),
        worlds.now * progress.accumulation_steps,
        "Gradients are summed in another order, so updates are equal up to floating-point order and rounding"
        + (", and so are the accumulators, whose sum over the ranks is kept." if progress.micro_step else "."),
        *(rank % worlds.before, worlds.before),
        "several ranks begin with the same state"
        if worlds.now > worlds.before
        else "the state of the others is dropped",
        "" if positioned else "; and the data, which the loop positions itself",
    )
