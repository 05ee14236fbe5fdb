"""What of a ``mindspore.dataset`` pipeline must not change between two starts, and how a difference is told.

Guarantees: equal fingerprints deliver the same data under the same seed, as far as size, columns and workers tell;
what the operations do, only the batches tell. Pure values but for `fingerprint`, which reads the pipeline.
Main thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import mindspore.dataset as ds

from ckptkit.mindspore.data.pipeline import carried_seeds, drawing_workers, global_order

_WORDS = {
    "size": "batches per epoch (the number of samples, the batch size or drop_remainder changed)",
    "batch_size": "samples per batch",
    "columns": "columns",
    "workers": "operations whose random numbers depend on their workers (set num_parallel_workers to what it was)",
    "carried_seeds": "seeds of ckptkit.data.Augmented, EpochSampler and GlobalSampler",
    "global_order": "what the ckptkit.data.GlobalSampler was made with",
}


@dataclass(frozen=True)
class Fingerprint:
    """What of a pipeline must stay as it is, its seed apart.

    Attributes:
        size: Batches per epoch.
        batch_size: Samples per batch.
        columns: Names, in order.
        workers: Of the operations whose output may depend on their number, by name, the root first.
        carried_seeds: Of `Augmented`, `EpochSampler` and `GlobalSampler`.
        global_order: Of a `GlobalSampler` that alone decides the order, over all ranks.
    """

    size: int
    batch_size: int
    columns: tuple[str, ...]
    workers: tuple[tuple[str, int], ...]
    carried_seeds: tuple[int, ...]
    global_order: Mapping[str, int] | None = None

    def differences(self, recorded: Mapping[str, Any], matters: set[str]) -> list[str]:
        """What differs from ``recorded``, one line each; of workers, only those of the operations in ``matters``."""

        def shown(values: Mapping[str, Any], name: str) -> Any:
            if name != "workers":
                return values.get(name)
            return tuple(tuple(one) for one in values[name] if one[0] in matters)

        return [
            f"{words}: the checkpoint has {shown(recorded, name)}, this dataset has {shown(vars(self), name)}"
            + (f"; write .batch({recorded[name]})" if name == "batch_size" else "")
            for name, words in _WORDS.items()
            if shown(recorded, name) != shown(vars(self), name)
        ]


def fingerprint(dataset: ds.Dataset) -> Fingerprint:
    """The fingerprint of ``dataset``; for some sources MindSpore runs the whole pipeline to learn its size."""
    order = global_order(dataset)
    return Fingerprint(
        size=dataset.get_dataset_size(),
        batch_size=dataset.get_batch_size(),
        columns=tuple(dataset.get_col_names()),
        workers=tuple(drawing_workers(dataset, stateless=False)),
        carried_seeds=tuple(carried_seeds(dataset)),
        global_order=None if order is None else asdict(order),
    )
