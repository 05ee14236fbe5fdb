"""Records what must not change in a ``mindspore.dataset`` pipeline between two starts, and describes differences.

Guarantees: pipelines of equal fingerprints deliver the same data under the same seed, as far as size, columns and
workers show. What the operations do, only the batches show. Pure values; only `fingerprint` reads the pipeline. Main
thread only.
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
    """Holds what must not change in a pipeline, except its seed.

    Attributes:
        size: Batches per epoch.
        batch_size: Samples per batch.
        columns: Names, in order.
        workers: Name and number of workers of each operation whose output may depend on that number, the root first.
        carried_seeds: Seeds of `Augmented`, `EpochSampler` and `GlobalSampler`.
        global_order: The order of a `GlobalSampler` that alone decides it, over all ranks; otherwise None.
    """

    size: int
    batch_size: int
    columns: tuple[str, ...]
    workers: tuple[tuple[str, int], ...]
    carried_seeds: tuple[int, ...]
    global_order: Mapping[str, int] | None = None

    def differences(self, recorded: Mapping[str, Any], matters: set[str]) -> list[str]:
        """Return the differences from ``recorded``, one line each; workers only of the operations in ``matters``."""

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
    """Return the fingerprint of ``dataset``; for some sources MindSpore runs the whole pipeline to learn its size."""
    order = global_order(dataset)
    return Fingerprint(
        size=dataset.get_dataset_size(),
        batch_size=dataset.get_batch_size(),
        columns=tuple(dataset.get_col_names()),
        workers=tuple(drawing_workers(dataset, stateless=False)),
        carried_seeds=tuple(carried_seeds(dataset)),
        global_order=None if order is None else asdict(order),
    )
