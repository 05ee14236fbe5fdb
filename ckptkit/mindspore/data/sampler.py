"""Provides random order and random augmentation that resume exactly *and* at once.

Guarantees: what a pipeline over `Augmented` delivers depends on (seed, epoch, index of the sample) only, so it can
begin anywhere without a replay, with any number of worker threads or processes. Does not detect state kept by
``augment`` or the source: they must not keep any. MindSpore copies the sampler for every iterator. A
`ckptkit.data.GlobalSampler` adds the order over many ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import mindspore.dataset as ds
import numpy as np

from ckptkit.mindspore.data.global_order import GlobalSampler
from ckptkit.mindspore.data.sample import epoch_order, sample_rng


class RandomAccess(Protocol):
    """Gives any of its samples at any time, the same each time."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class EpochSampler(ds.Sampler):
    """Yields ``epoch * num_samples + index``, which tells the source its epoch.

    For a custom source: ``epoch, index = divmod(number, num_samples)``; `Augmented` does this itself.

    Args:
        num_samples: Number of samples in the source.
        seed: Decides the order, together with the epoch.
        shuffle: False for the order of the source in every epoch.

    Attributes:
        epoch: The first epoch of an iterator that is made now; 0 except while a resume makes its own.

    Raises:
        ValueError: If ``num_samples`` is not positive or ``seed`` negative.
    """

    def __init__(self, num_samples: int, seed: int, shuffle: bool = True) -> None:
        if num_samples < 1 or seed < 0:
            raise ValueError(f"num_samples must be at least 1 and seed not negative, got {num_samples} and {seed}")
        super().__init__(num_samples)
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        # MindSpore calls this once per epoch, on a copy made for the iterator.
        epoch, self.epoch = self.epoch, self.epoch + 1
        order = epoch_order(self.num_samples, self.seed, epoch) if self.shuffle else np.arange(self.num_samples)
        return iter((epoch * self.num_samples + order).tolist())


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

    def __init__(
        self, source: RandomAccess | Sequence[Any], augment: Callable[[Any, np.random.Generator], Any], *, seed: int
    ) -> None:
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
