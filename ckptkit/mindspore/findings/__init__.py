"""What of a training no checkpoint can make exact, found before it begins.

Guarantees: pure inspection; nothing is changed, compiled or run. What is found is there; what code does that
cannot be read (compiled extensions, callables out of containers) is not found. Main thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import mindspore.dataset as ds
from mindspore import nn

from ckptkit.mindspore.findings.cells import find_in_cells
from ckptkit.mindspore.findings.finding import Finding
from ckptkit.mindspore.findings.pipelines import find_in_pipeline

__all__ = ["Finding", "find"]


def find(
    cell: nn.Cell | Iterable[nn.Cell], dataset: ds.Dataset | None = None, *, named: Collection[object] = ()
) -> tuple[Finding, ...]:
    """What would not be exact, in the present mode.

    Args:
        cell: The train cell, or the cells of a training without one.
        dataset: The pipeline that feeds it.
        named: Objects that checkpoints hold by name: what they hold is not reported.
    """
    cells = (cell,) if isinstance(cell, nn.Cell) else tuple(cell)
    found = list(find_in_cells(cells, {id(one) for one in named}))
    if dataset is not None:
        found += find_in_pipeline(dataset)
    return tuple(found)
