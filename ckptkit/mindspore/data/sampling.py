"""Gives random numbers, orders of samples and augmentation that depend on (seed, epoch, index), not on the process.

Guarantees: distinct arguments give distinct streams, up to a collision of BLAKE2b at 128 bits. A pipeline over
`Augmented` may begin anywhere without a replay, with any number of workers, as long as ``augment`` and the source keep
no state. In every world the same samples make up a global batch, and each is in one rank's part once. Any thread, any
process; MindSpore copies a sampler for every iterator.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import mindspore.dataset as ds
import numpy as np
import numpy.typing as npt

from ckptkit.mindspore.process_group import world

Numbers = npt.NDArray[np.int64]


def sample_rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return the generator of one sample in one epoch.

    For augmentation: draw crop, flip and noise from it, and from nothing else::

        def augment(sample, rng):
            image, label = sample
            top, left = rng.integers(0, 5, size=2)
            return image[top : top + 28, left : left + 28], label

    Args:
        seed: Seed of the run.
        epoch: Zero-based.
        index: Index of the sample in its source.

    Raises:
        TypeError: If an argument is not an integer.
        ValueError: If one is negative.
    """
    return np.random.Generator(_philox("sample", seed, epoch, index))


def epoch_order(num_samples: int, seed: int, epoch: int) -> Numbers:
    """Return the order of the samples in one epoch, a permutation of ``range(num_samples)``."""
    # Raw bits of Philox are the same in every version of NumPy; `Generator.permutation` may change.
    return np.argsort(_philox("order", seed, epoch).random_raw(num_samples), kind="stable")


def _philox(purpose: str, *numbers: int) -> np.random.Philox:
    # The key is the BLAKE2b digest of ``sample/<seed>/<epoch>/<index>``, little endian. It must not change: stored runs
    # depend on it.
    plain = [operator.index(number) for number in numbers]
    if min(plain) < 0:
        raise ValueError(f"seed, epoch and index must not be negative, got {', '.join(map(str, plain))}")
    key = hashlib.blake2b("/".join([purpose, *map(str, plain)]).encode(), digest_size=16).digest()
    return np.random.Philox(key=int.from_bytes(key, "little"))


@dataclass(frozen=True)
class GlobalOrder:
    """Holds what must be the same in every world; the arguments are those of `GlobalSampler`."""

    num_samples: int
    global_batch: int
    micro_batch: int
    seed: int
    shuffle: bool = True

    def __post_init__(self) -> None:
        numbers = (self.num_samples, self.global_batch, self.micro_batch, self.seed)
        if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
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
        """Return the micro-steps of an epoch; ValueError if ``world_size`` ranks cannot share a global batch."""
        in_all = self.global_batch // self.micro_batch
        if world_size < 1 or in_all % world_size:
            fitting = [str(ranks) for ranks in range(1, in_all + 1) if in_all % ranks == 0]
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


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return the rank and the number of ranks: those given, or this process's."""
    if (rank is None) != (world_size is None):
        raise ValueError("give both rank and world_size, or neither")
    if rank is None or world_size is None:
        here = world()
        return here.rank, here.size
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be one of the {world_size} ranks, got {rank}")
    return rank, world_size


class EpochSampler(ds.Sampler):
    """Yields ``epoch * num_samples + index``, which tells the source its epoch.

    For a custom source: ``epoch, index = divmod(number, num_samples)``; `Augmented` does this itself.

    Args:
        num_samples: Number of samples in the source.
        seed: Decides the order, together with the epoch.
        shuffle: False for the order of the source in every epoch.

    Raises:
        ValueError: If ``num_samples`` is not positive or ``seed`` negative.
    """

    def __init__(self, num_samples: int, seed: int, shuffle: bool = True) -> None:
        if num_samples < 1 or seed < 0:
            raise ValueError(f"num_samples must be at least 1 and seed not negative, got {num_samples} and {seed}")
        super().__init__(num_samples)
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0  # of an iterator that is made now; not 0 while a resume makes its own

    def __iter__(self) -> Iterator[int]:
        # MindSpore calls this once per epoch, on a copy made for the iterator.
        epoch, self.epoch = self.epoch, self.epoch + 1
        order = epoch_order(self.num_samples, self.seed, epoch) if self.shuffle else np.arange(self.num_samples)
        return iter((epoch * self.num_samples + order).tolist())


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

    Raises:
        ValueError: If a number is not a positive int (a seed may be 0), a global batch is not made of whole
            micro-batches, has more samples than there are or cannot be shared evenly by the ranks, only one of ``rank``
            and ``world_size`` is given, or the rank is out of range.
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
            common = math.gcd(state["samples"], self.order.global_batch) // self.order.micro_batch
            fitting = ", ".join(str(ranks) for ranks in range(1, common + 1) if common % ranks == 0)
            raise ValueError(
                f"{state['samples']} samples are not a whole number of micro-steps of {self.world_size} ranks with "
                f"micro-batches of {self.order.micro_batch}; {fitting} ranks can continue there"
            )
        self._epoch, self._step = state["epoch"], step


class RandomAccess(Protocol):
    """Gives any of its samples at any time, the same each time."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Augmented:
    """Augments the samples of a source at random, each by the generator of its seed, epoch and index.

    ::

        def augment(sample, rng):
            image, label = sample
            top, left = rng.integers(0, 5, size=2)
            return image[top : top + 28, left : left + 28], label

        dataset = ck.data.Augmented(digits, augment, seed=7).dataset(["image", "label"]).batch(32)

    Args:
        source: Has ``len()`` and gives any sample by its index.
        augment: Gets a sample and a `numpy.random.Generator`, the only source of randomness that it may use; returns
            the row as a tuple of arrays, one per column.
        seed: Seed of augmentation and order.
    """

    def __init__(self, source: RandomAccess, augment: Callable[[Any, np.random.Generator], Any], *, seed: int) -> None:
        self.seed = seed
        self._source = source
        self._augment = augment

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, number: int) -> Any:
        """Return the row of the sample that an `EpochSampler` numbered."""
        epoch, index = divmod(int(number), len(self._source))
        return self._augment(self._source[index], sample_rng(self.seed, epoch, index))

    def dataset(
        self, column_names: Sequence[str], *, shuffle: bool = True, ranks: GlobalSampler | None = None, **options: Any
    ) -> ds.GeneratorDataset:
        """Return the MindSpore pipeline over it, one row per sample.

        Args:
            column_names: Names of the columns.
            shuffle: False for the order of the source in every epoch.
            ranks: This rank's part of the samples and their order, in a job of many ranks; it has its own ``shuffle``.
                Follow it by ``.batch(micro_batch)``.
            **options: Passed to `ds.GeneratorDataset`.

        Raises:
            ValueError: If ``options`` name another sampler, or ``ranks`` has another number of samples.
        """
        taken = sorted(options.keys() & {"sampler", "batch_sampler", "num_samples", "num_shards", "shard_id"})
        if taken:
            raise ValueError(
                f"{', '.join(taken)} cannot be set: the EpochSampler gives the order, because it knows the epoch; "
                "for many ranks pass ranks=ckptkit.data.GlobalSampler(...)"
            )
        if ranks is not None and (ranks.order.num_samples != len(self) or not shuffle):
            raise ValueError(
                f"ranks= is a GlobalSampler of {ranks.order.num_samples} samples, the source has {len(self)}"
                if shuffle
                else "give shuffle=False to the GlobalSampler"
            )
        sampler = EpochSampler(len(self), self.seed, shuffle) if ranks is None else ranks
        return ds.GeneratorDataset(self, list(column_names), sampler=sampler, **options)
