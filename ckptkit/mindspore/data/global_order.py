"""Defines one order of the samples for all ranks of a job, from which each rank derives its part.

Guarantees: the order of an epoch depends on the seed and the epoch only, and is cut to whole global batches. In every
world the same samples make up a global batch, each is in one rank's part once, and an epoch ends at a boundary. So a
position is one global number, and a run continues in another world with the next sample. Values, any thread; MindSpore
copies a sampler for every iterator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import mindspore.dataset as ds
import numpy as np
import numpy.typing as npt

from ckptkit.mindspore.data.sample import epoch_order
from ckptkit.mindspore.process_group import world

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class GlobalOrder:
    """Holds what must be the same in every world.

    Attributes:
        num_samples: Number of samples in the source.
        global_batch: Samples per optimizer step over all ranks; if K changes, a common multiple of these.
        micro_batch: Samples per rank and micro-step.
        seed: Decides the order, together with the epoch.
        shuffle: False for the order of the source in every epoch.

    Raises:
        ValueError: If a number is not an int or not positive, the seed is negative, there is no whole global batch, or
            a global batch is not made of whole micro-batches.
    """

    num_samples: int
    global_batch: int
    micro_batch: int
    seed: int
    shuffle: bool = True

    def __post_init__(self) -> None:
        numbers = (self.num_samples, self.global_batch, self.micro_batch, self.seed)
        if any(isinstance(one, bool) or not isinstance(one, int) for one in numbers):
            raise ValueError(f"num_samples, global_batch, micro_batch and seed must be ints, got {numbers}")
        if self.seed < 0 or min(numbers[:3]) < 1:
            raise ValueError(
                "num_samples, global_batch and micro_batch must be at least 1 and seed not negative, got "
                f"{self.num_samples}, {self.global_batch}, {self.micro_batch} and {self.seed}"
            )
        if self.global_batch % self.micro_batch:
            raise ValueError(
                f"a global batch of {self.global_batch} cannot be divided into micro-batches of {self.micro_batch}"
            )
        if self.num_samples < self.global_batch:
            raise ValueError(f"{self.num_samples} samples are too few for a global batch of {self.global_batch}")

    @property
    def per_epoch(self) -> int:
        """Samples of an epoch: whole global batches; the rest of the permutation is left out of that epoch."""
        return self.num_samples // self.global_batch * self.global_batch

    def micro_steps(self, world_size: int) -> int:
        """Return the micro-steps of an epoch in a world of ``world_size``.

        Raises:
            ValueError: If a global batch is not made of whole micro-steps there.
        """
        in_all = self.global_batch // self.micro_batch
        if world_size < 1 or in_all % world_size:
            fitting = [str(one) for one in range(1, in_all + 1) if in_all % one == 0]
            raise ValueError(
                f"a global batch of {self.global_batch} is {in_all} micro-batches of {self.micro_batch}, which "
                f"{world_size} ranks cannot share evenly; {', '.join(fitting)} ranks can"
            )
        return self.per_epoch // (world_size * self.micro_batch)

    def numbers(self, epoch: int, rank: int, world_size: int) -> Numbers:
        """Return ``epoch * num_samples + index`` of one rank's samples, by micro-step: (steps, micro_batch)."""
        steps = self.micro_steps(world_size)
        order = epoch_order(self.num_samples, self.seed, epoch) if self.shuffle else np.arange(self.num_samples)
        dealt = order[: self.per_epoch].reshape(steps, world_size, self.micro_batch)
        part: Numbers = epoch * self.num_samples + dealt[:, rank].astype(np.int64)
        return part


class GlobalSampler(ds.Sampler):
    """Yields ``epoch * num_samples + index`` for one rank of a job, as `EpochSampler` does for one process.

    Micro-step t of a world of N gives rank r the samples ``[t*N*B + r*B, t*N*B + (r+1)*B)`` of the epoch's order, where
    B is ``micro_batch``. If nothing else in the pipeline reorders, a run over it continues in another world with
    ``Ranks(elastic=True)``::

        order = ck.data.GlobalSampler(len(digits), global_batch=256, micro_batch=16, seed=7)
        dataset = ck.data.Augmented(digits, augment, seed=7).dataset(["image", "label"], ranks=order).batch(16)

    Args:
        num_samples: Number of samples in the source.
        global_batch: Samples per optimizer step over all ranks: world size x K x micro-batch, the same in every world.
            For a schedule of K, a common multiple of these.
        micro_batch: Samples per rank and micro-step.
        seed: Decides the order, together with the epoch.
        rank: Rank of this process; detected by default.
        world_size: Number of ranks; detected by default.
        shuffle: False for the order of the source in every epoch.

    Attributes:
        order: The order, the same in every world.
        epoch: The first epoch of an iterator that is made now; 0 except while a resume makes its own.

    Raises:
        ValueError: As for `GlobalOrder`; or if the ranks cannot share a global batch evenly, only one of ``rank`` and
            ``world_size`` is given, or the rank is out of range.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        global_batch: int,
        micro_batch: int,
        seed: int,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
    ) -> None:
        self.order = GlobalOrder(num_samples, global_batch, micro_batch, seed, shuffle)
        self.rank, self.world_size = place_of(rank, world_size)
        super().__init__(self.order.micro_steps(self.world_size) * micro_batch)
        self.seed = seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        # MindSpore calls this once per epoch, on a copy made for the iterator.
        epoch, self.epoch = self.epoch, self.epoch + 1
        return iter(self.order.numbers(epoch, self.rank, self.world_size).reshape(-1).tolist())


class GlobalIndices:
    """Yields the numbers of a rank's samples by micro-batch, for `ckptkit.data.resumable` and a custom loop.

    ::

        order = ck.data.GlobalIndices(len(digits), global_batch=256, micro_batch=16, seed=7)
        batches = ck.data.resumable(order, epochs=10)
        for numbers in batches:             # of this rank's next micro-batch, int64 (micro_batch,)
            epoch, indices = divmod(numbers, len(digits))

    Its state is the epoch and one global number, and means the same in every world. The arguments are those of
    `GlobalSampler`.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        global_batch: int,
        micro_batch: int,
        seed: int,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
    ) -> None:
        self.order = GlobalOrder(num_samples, global_batch, micro_batch, seed, shuffle)
        self.rank, self.world_size = place_of(rank, world_size)
        self._steps = self.order.micro_steps(self.world_size)
        self._epoch = 0
        self._step = 0

    def __len__(self) -> int:
        """Micro-batches per epoch."""
        return self._steps

    def __iter__(self) -> Iterator[Numbers]:
        """Yield the rest of the current epoch; after its last micro-batch, the next epoch becomes current."""
        numbers = self.order.numbers(self._epoch, self.rank, self.world_size)
        while self._step < self._steps:
            self._step += 1
            yield numbers[self._step - 1]
        self._epoch, self._step = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the order, the epoch, and the number of its samples given to all ranks together."""
        done = self._step * self.world_size * self.order.micro_batch
        return {"order": asdict(self.order), "epoch": self._epoch, "samples": done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after those samples.

        Raises:
            ValueError: If the state has another order, or no micro-step of this world ends there.
        """
        if state["order"] != asdict(self.order):
            raise ValueError(f"the order of the samples was {state['order']}, it is {asdict(self.order)} now")
        step, rest = divmod(state["samples"], self.world_size * self.order.micro_batch)
        if rest:
            raise ValueError(
                f"{state['samples']} samples are not a whole number of micro-steps of {self.world_size} ranks with "
                f"micro-batches of {self.order.micro_batch}; {_fitting(state['samples'], self.order)} ranks can "
                "continue there"
            )
        self._epoch, self._step = state["epoch"], step


def _fitting(samples: int, order: GlobalOrder) -> str:
    common = math.gcd(samples, order.global_batch) // order.micro_batch
    return ", ".join(str(one) for one in range(1, common + 1) if common % one == 0)


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return the rank and the number of ranks: those given, or this process's.

    Raises:
        ValueError: If only one of them is given, or the rank is out of range.
    """
    if (rank is None) != (world_size is None):
        raise ValueError("give both rank and world_size, or neither")
    if rank is None or world_size is None:
        here = world()
        return here.rank, here.size
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be one of the {world_size} ranks, got {rank}")
    return rank, world_size
