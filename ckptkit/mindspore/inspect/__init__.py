"""Finds what no checkpoint can make exact in a training, before it begins.

Guarantees: only inspects; changes and compiles nothing, and of the user's code runs only ``state_dict()`` and
``load_state_dict()`` of copies (`values.loads` says when). Everything reported exists. What unreadable code does
(compiled extensions, callables from containers) is not found. Main thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import mindspore.dataset as ds
from mindspore import nn

from ckptkit.mindspore.inspect.cells import find_in_cells, left_out
from ckptkit.mindspore.inspect.constants import constants_in_callbacks, constants_in_loops
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.frames import loop_variables
from ckptkit.mindspore.inspect.loops import find_in_loops, used_in_loops
from ckptkit.mindspore.inspect.loops.per_step import find_in_steps_of_callbacks, find_in_steps_of_cells, hooks_of
from ckptkit.mindspore.inspect.partial_generators import find_partial_generators
from ckptkit.mindspore.inspect.pipelines import (
    find_in_pipeline,
    find_kept_by_stateless,
    find_random_operators,
    read_here,
    sources_of,
)
from ckptkit.mindspore.inspect.values.changed import ChangedValues
from ckptkit.mindspore.inspect.values.lost import find_lost_state, find_parted_objects, find_remade_otherwise
from ckptkit.mindspore.inspect.values.roots import Root, roots_of_loops
from ckptkit.mindspore.inspect.values.start import (
    differ,
    is_single,
    made,
    may_limit,
    start_values_of,
    variable_of,
)

__all__ = [
    "ChangedValues",
    "Finding",
    "Root",
    "constants_in_callbacks",
    "constants_in_loops",
    "differ",
    "find",
    "find_in_loops",
    "find_in_steps_of_callbacks",
    "find_in_steps_of_cells",
    "find_kept_by_stateless",
    "find_lost_state",
    "find_parted_objects",
    "find_partial_generators",
    "find_random_operators",
    "find_remade_otherwise",
    "hooks_of",
    "is_single",
    "left_out",
    "loop_variables",
    "made",
    "may_limit",
    "read_here",
    "roots_of_loops",
    "sources_of",
    "start_values_of",
    "used_in_loops",
    "variable_of",
]


def find(
    cell: nn.Cell | Iterable[nn.Cell],
    dataset: ds.Dataset | None = None,
    *,
    named: Collection[object] = (),
    by_name: Iterable[tuple[str, nn.Cell]] = (),
    stored: Collection[tuple[object, Collection[str]]] = (),
    variables: Iterable[tuple[str, object]] = (),
    elsewhere: Collection[int] = (),
) -> tuple[Finding, ...]:
    """Return what would not be exact in the current mode.

    Args:
        cell: The train cell, or the cells of a training without one.
        dataset: The pipeline that feeds it.
        named: Objects that checkpoints hold by name. Their contents are not reported.
        by_name: Those of them that are trained cells, each with its name.
        stored: Objects of which checkpoints hold some attributes, with their names.
        variables: Variables of a custom training loop, each with its place; see `loop_variables`.
        elsewhere: ``id`` of cells that the checkpoints of another run in this process hold.
    """
    cells = (cell,) if isinstance(cell, nn.Cell) else tuple(cell)
    known = {id(one) for one in named}
    found = list(find_in_cells(cells, known, variables, stored, by_name=by_name, elsewhere=elsewhere))
    if dataset is not None:
        found += find_in_pipeline(dataset)
    return tuple(found)
