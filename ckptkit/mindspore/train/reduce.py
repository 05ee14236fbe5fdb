"""Sums a cycle's accumulators over all ranks, once per cycle and before anything reads them.

Guarantees: afterwards every rank has the same bits in its accumulators, divisor included. All ranks therefore decide
the same about an overflow and make the same update, whatever ``normalize`` divides by. A value that is not finite in
one rank is not finite in any. Equal inputs give equal bits from run to run, with the same number of ranks.

Does not: notice that the ranks are at different micro-steps; saves compare that. This is a collective: every rank
calls it from its main thread. If a rank has left, the others wait for MindSpore's timeout (half a minute) and raise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import mindspore as ms
from mindspore import nn, ops

from ckptkit.mindspore.process_group import initialized, world
from ckptkit.mindspore.train.gradients import hyper_map

BUCKET_BYTES = 32 * 2**20  # the reduction of a bucket needs twice its size as extra memory
_SET = "mindspore.set_auto_parallel_context(parallel_mode='data_parallel')"
flatten = ops.MultitypeFuncGraph("flatten")
assign_part = ops.MultitypeFuncGraph("assign_part")


@flatten.register("Tensor")
def _flatten(total: ms.Parameter) -> ms.Tensor:
    return ops.reshape(total, (-1,))


@assign_part.register("Tensor", "Tensor", "Number")
def _assign_part(flat: ms.Tensor, total: ms.Parameter, offset: int) -> ms.Tensor:
    # The graph compiler would unroll ops.split.
    return ops.assign(total, ops.reshape(ops.slice(flat, (offset,), (total.size,)), total.shape))


class Reduce:
    def __init__(self, accumulators: Sequence[ms.Parameter], *, bucket_bytes: int = BUCKET_BYTES) -> None:
        all_reduce = ops.AllReduce(ops.ReduceOp.SUM)
        self._buckets = [_ReducedBucket(bucket, all_reduce) for bucket in _buckets(accumulators, bucket_bytes)]

    def __call__(self) -> None:
        """Enqueue the reduction; returns before it has run, as any graph does."""
        for bucket in self._buckets:
            bucket()


class _ReducedBucket(nn.Cell):
    def __init__(self, members: Sequence[ms.Parameter], all_reduce: ops.AllReduce) -> None:
        super().__init__(auto_prefix=False)
        self.members = ms.ParameterTuple(members)
        self.all_reduce = all_reduce
        self.offsets = (0, *itertools.accumulate(member.size for member in members[:-1]))
        self.alone = len(members) == 1

    @ms.jit  # in PYNATIVE too: each separate operation costs as much as the AllReduce of a small network
    def construct(self) -> Any:
        """Change the members in place; the return value has no meaning."""
        if self.alone:
            return ops.assign(self.members[0], self.all_reduce(self.members[0]))
        flat = self.all_reduce(ops.concat(hyper_map(flatten, self.members)))
        return hyper_map(ops.partial(assign_part, flat), self.members, self.offsets)


def _buckets(accumulators: Sequence[ms.Parameter], bucket_bytes: int) -> Iterator[list[ms.Parameter]]:
    """Yield all accumulators in order, as many at a time as fit; only shapes decide, so every rank gets the same."""
    bucket: list[ms.Parameter] = []
    for accumulator in accumulators:
        if bucket and 4 * sum(int(other.size) for other in (*bucket, accumulator)) > bucket_bytes:
            yield bucket
            bucket = []
        bucket.append(accumulator)
    if bucket:
        yield bucket


def ranks_to_reduce_over() -> int:
    """Return how many ranks train together, by communication and parallel mode; 1 if this one trains alone."""
    mode = ms.get_auto_parallel_context("parallel_mode")
    size = world().size
    if mode == "stand_alone":
        if size > 1:
            raise ValueError(
                f"this job has {size} ranks, but parallel_mode is 'stand_alone': each would train separately. Call "
                f"{_SET} before the train cell is made"
            )
        return 1
    if mode != "data_parallel":
        raise ValueError(
            f"parallel_mode={mode!r} is not supported. Use 'data_parallel', where every rank has the whole network: "
            f"{_SET}"
        )
    if not initialized():
        raise ValueError(
            "parallel_mode is 'data_parallel', but this process has not joined a group: call "
            "mindspore.communication.init() before the train cell is made"
        )
    if ms.get_auto_parallel_context("enable_parallel_optimizer"):
        raise ValueError("enable_parallel_optimizer=True is not supported: a rank would update a part of the weights")
    return size
