"""The position of a ``mindspore.dataset`` pipeline inside training.

It is one number, the batches *delivered* to training since epoch 0, with the dataset seed in force when the
iterator was made. Guarantees: a pipeline that is itself deterministic goes on with exactly the next batch, in
the order of the epoch it is in; another size, batch size, seed or set of columns is refused before the first
batch. Whether a pipeline's Python code draws from the process-wide generators is for `ckptkit.mindspore.findings`
to say. Main thread only; `prepare`, then make the iterator, then `iterator_made`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import mindspore.dataset as ds

from ckptkit.errors import ResumeError
from ckptkit.mindspore.rng import undisturbed

_log = logging.getLogger("ckptkit")

_UNSET_SEED = 5489  # the default seed of std::mt19937: MindSpore's word for "not set", and then it is random

# Exact with fast recovery, measured one by one. Anything else is replayed, which is exact for every pipeline
# that is deterministic at all. (MindSpore's own default is fast for all, and then random maps silently differ.)
_FAST = {
    "NumpySlicesDataset",
    "MnistDataset",
    "BatchDataset",
    "RepeatDataset",
    "ProjectDataset",
    "RenameDataset",
    "ShuffleDataset",
}


@dataclass(frozen=True)
class Pipeline:
    """What of a pipeline must not change between two starts.

    Attributes:
        size: Batches per epoch.
        batch_size: Samples per batch.
        columns: Names, in order.
        seed: In force when the iterator is made.
    """

    size: int
    batch_size: int
    columns: tuple[str, ...]
    seed: int


class DatasetPosition:
    """Puts a pipeline at a position.

    Args:
        dataset: The root of the pipeline, as ``Model.train`` gets it.
        draw_seed: Gives the seed of a fresh start where the user has set none.

    Raises:
        ResumeError: If positioning does not work in this process (dataset debug mode).
    """

    def __init__(self, dataset: ds.Dataset, *, draw_seed: Callable[[], int] = lambda: secrets.randbelow(2**31)) -> None:
        if ds.config.get_debug_mode():
            raise ResumeError("dataset debug mode ignores positions; call ds.config.set_debug_mode(False)")
        self.dataset = dataset
        # Before any seed is set: for some sources MindSpore runs the whole pipeline to learn its size.
        self.size: int = dataset.get_dataset_size()
        if self.size < 1:
            raise ResumeError("the dataset delivers no batch; look at its source, and at drop_remainder=True")
        self._batch_size: int = dataset.get_batch_size()
        self._columns: tuple[str, ...] = tuple(dataset.get_col_names())
        self._draw_seed = draw_seed
        self._seed: int | None = None
        self._fast_recovery_before: bool | None = None
        self._seed_before: int | None = None

    def pipeline(self) -> Pipeline:
        """What must stay as it is from start to start; call it after `prepare`."""
        if self._seed is None:
            raise ResumeError("the dataset was not prepared: restore the state before the iterator is made")
        return Pipeline(self.size, self._batch_size, self._columns, self._seed)

    def state(self) -> dict[str, Any]:
        """`pipeline` as plain values, for a checkpoint."""
        return asdict(self.pipeline())

    def check(self, recorded: Mapping[str, Any]) -> None:
        """Compare this pipeline with the one that a checkpoint was taken from.

        Raises:
            ResumeError: If they differ; says in what and what to do. Nothing was changed.
        """
        mine = {"size": self.size, "batch_size": self._batch_size, "columns": self._columns}
        words = {
            "size": "batches per epoch (the number of samples, the batch size or drop_remainder changed)",
            "batch_size": "samples per batch",
            "columns": "columns",
        }
        differences = [
            f"{words[key]}: the checkpoint has {recorded[key]}, this dataset has {value}"
            for key, value in mine.items()
            if value != recorded[key]
        ]
        seed = ds.config.get_seed()
        if seed not in (_UNSET_SEED, recorded["seed"]):
            differences.append(
                f"the dataset seed: the checkpoint has {recorded['seed']}, this process set {seed} "
                f"(use ms.set_seed({recorded['seed']}) or none)"
            )
        if differences:
            raise ResumeError(
                "the data would not go on where it was. Make the dataset as it was, or start under another "
                "root:\n  " + "\n  ".join(differences)
            )

    def prepare(self, batches_delivered: int, recorded: Mapping[str, Any] | None) -> None:
        """Let the next iterator begin at the batch after ``batches_delivered``.

        Args:
            batches_delivered: Since epoch 0; 0 on a fresh start.
            recorded: `state` of the checkpoint, checked before; None on a fresh start.
        """
        if self._seed_before is None:
            self._seed_before = ds.config.get_seed()
        seed = int(recorded["seed"]) if recorded is not None else self._fresh_seed()
        with undisturbed():
            ds.config.set_seed(seed)
        self._seed = seed
        if self._fast_recovery_before is None:
            self._fast_recovery_before = ds.config.get_fast_recovery()
        fast = all(_is_fast(node) for node in _nodes(self.dataset))
        ds.config.set_fast_recovery(fast)
        # On the root, in batches, and also when it is 0: it sticks to the object.
        self.dataset.set_init_step(batches_delivered)
        if batches_delivered and not fast:
            _log.info(
                "replaying the data pipeline up to batch %d, since some of its operations may be random",
                batches_delivered,
            )

    def iterator_made(self) -> None:
        """Undo what was only for the making of the iterator.

        Raises:
            ResumeError: If the seed was changed since `prepare`, so that the iterator has another order.
        """
        self.release()
        seed = ds.config.get_seed()
        if seed != self._seed:
            raise ResumeError(
                f"the dataset seed was {self._seed} when the run was resumed and is {seed} now; "
                "call ms.set_seed before resume(), not after it"
            )

    def leave(self) -> None:
        """Leave the process as it was before `prepare`, seed included: a later training may be another run."""
        self.release()
        if self._seed_before is not None and ds.config.get_seed() == self._seed:
            with undisturbed():
                ds.config.set_seed(self._seed_before)
        self._seed_before = None

    def release(self) -> None:
        """Let later iterators begin at the beginning; the seed stays in force for those of evaluation."""
        self.dataset.set_init_step(0)
        if self._fast_recovery_before is not None:
            ds.config.set_fast_recovery(self._fast_recovery_before)
            self._fast_recovery_before = None

    def _fresh_seed(self) -> int:
        seed: int = ds.config.get_seed()
        if seed != _UNSET_SEED:
            return seed
        seed = self._draw_seed()
        while seed == _UNSET_SEED:
            seed = self._draw_seed()
        _log.info(
            "no dataset seed was set, which could not be resumed: drew %d and recorded it in the run; "
            "ms.set_seed(%d) gives the same order of data again",
            seed,
            seed,
        )
        return seed


def _nodes(dataset: ds.Dataset) -> Iterator[ds.Dataset]:
    yield dataset
    for child in dataset.children:
        yield from _nodes(child)


def _is_fast(node: ds.Dataset) -> bool:
    if type(node).__name__ not in _FAST or type(node).__module__.partition(".")[0] != "mindspore":
        return False
    if not _is_fast_sampler(getattr(node, "sampler", None)):
        return False
    # per_batch_map and a callable batch size (private attributes of BatchDataset) are Python code; where they
    # cannot be seen any more, the pipeline is replayed.
    return type(node).__name__ != "BatchDataset" or (
        getattr(node, "per_batch_map", node) is None and getattr(node, "batch_size_func", node) is None
    )


def _is_fast_sampler(sampler: Any) -> bool:
    # A sampler of the user's own is Python code that may be random; where it does not inherit from ds.Sampler,
    # MindSpore wraps it in an IterSampler, which does.
    if sampler is None:
        return True
    if isinstance(sampler, ds.Sampler) or type(sampler).__module__.partition(".")[0] != "mindspore":
        return False
    return _is_fast_sampler(getattr(sampler, "child_sampler", None))
