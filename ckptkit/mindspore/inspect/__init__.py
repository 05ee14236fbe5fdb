"""What of a training no checkpoint can make exact, found before it begins.

Guarantees: pure inspection; nothing is changed, compiled or run. What is found is there; what code does that
cannot be read (compiled extensions, callables out of containers) is not found. Main thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import mindspore.dataset as ds
from mindspore import nn

from ckptkit.mindspore.inspect.cells import find_in_cells, left_out
from ckptkit.mindspore.inspect.constants import constants_in_callbacks, constants_in_loops
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.frames import loop_variables
from ckptkit.mindspore.inspect.loops import find_in_loops
from ckptkit.mindspore.inspect.pipelines import find_in_pipeline

__all__ = [
    "Finding",
    "constants_in_callbacks",
    "constants_in_loops",
    "find",
    "find_in_loops",
    "left_out",
    "loop_variables",
]


def find(
    cell: nn.Cell | Iterable[nn.Cell],
    dataset: ds.Dataset | None = None,
    *,
    named: Collection[object] = (),
    variables: Iterable[tuple[str, object]] = (),
) -> tuple[Finding, ...]:
    """What would not be exact, in the present mode.

    Args:
        cell: The train cell, or the cells of a training without one.
        dataset: The pipeline that feeds it.
        named: Objects that checkpoints hold by name: what they hold is not reported.
        variables: Of the loop that trains, if it is one's own, each with its place; see `loop_variables`.
    """
    cells = (cell,) if isinstance(cell, nn.Cell) else tuple(cell)
    found = list(find_in_cells(cells, {id(one) for one in named}, variables))
    if dataset is not None:
        found += find_in_pipeline(dataset)
    return tuple(found)
