"""Converts MindSpore's own description of a cut parameter into a `Box`.

Guarantees: it refuses what it does not support (fields of an embedding, uneven cuts, an optimizer group that is not a
run of replicas). It was derived from MindSpore's source and by hand: CPU cannot make a layout, and it has never run on
Ascend. Pure functions, any thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ckptkit.core.placement import Box


class Layout(NamedTuple):
    """Holds a value of ``cell.parameter_layout_dict``, which is a list of these in this order.

    Attributes:
        device_matrix: How the devices of the stage are arranged.
        tensor_map: For each axis of the tensor the axis of the device matrix along which it is cut, counted from the
            right; -1 for an axis that is not cut. Empty if none is.
        slice_shape: Shape of a part, after the group's cut; empty if MindSpore does not give it.
        field_size: 0, or the size of an embedding that is cut by fields.
        uniform_split: Whether all parts have one size.
        opt_shard_group: Name of the group over which axis 0 is cut again; empty for none.
        full_shape: Shape of the whole.
    """

    device_matrix: Sequence[int]
    tensor_map: Sequence[int]
    slice_shape: Sequence[int]
    field_size: int
    uniform_split: bool
    opt_shard_group: str
    full_shape: Sequence[int]


def box_of(layout: Layout, position: int, group: tuple[int, int] = (0, 1)) -> tuple[Box, tuple[int, ...]]:
    """Return the part that a device holds, and its shape.

    Args:
        layout: Layout of the parameter.
        position: Position of the device in its stage: the rank, if there is one stage.
        group: Rank and size of the device in ``opt_shard_group``, if that is not empty.

    Raises:
        ValueError: If the layout is one of those that this does not support; says which.
    """
    if layout.field_size or not layout.uniform_split:
        raise ValueError(
            "a parameter cut by fields, or into uneven parts, cannot be described by a box from its layout"
        )
    if bool(layout.opt_shard_group) != (group[1] > 1):
        raise ValueError(f"opt_shard_group is {layout.opt_shard_group!r}, the group given is {group}")
    place = [int(one) for one in np.unravel_index(position, tuple(layout.device_matrix))]
    last = len(place) - 1
    mapped = layout.tensor_map or [-1] * len(layout.full_shape)
    along = [(1, 0) if m == -1 else (layout.device_matrix[last - m], place[last - m]) for m in mapped]
    unused = [axis for axis in range(len(place)) if last - axis not in mapped]
    replica = 0
    for axis in unused:
        replica = replica * layout.device_matrix[axis] + place[axis]
    replicas = math.prod(layout.device_matrix[axis] for axis in unused)
    if replicas % group[1] or replica % group[1] != group[0]:
        raise ValueError(f"device {position} is replica {replica} of {replicas}, which is not {group} in its group")
    if group[1] > 1:
        count, at = along[0]
        along[0] = (count * group[1], at * group[1] + group[0])
    whole = tuple(layout.full_shape)
    if any(size % count for size, (count, _) in zip(whole, along, strict=True)):
        raise ValueError(f"the shape {whole} does not divide by {tuple(count for count, _ in along)}")
    shape = tuple(size // count for size, (count, _) in zip(whole, along, strict=True))
    if layout.slice_shape and tuple(layout.slice_shape) != shape:
        raise ValueError(f"MindSpore gives the part of {whole} the shape {layout.slice_shape}, expected {shape}")
    offsets = tuple(at * size for size, (_, at) in zip(shape, along, strict=True))
    return Box(whole, offsets, replica // group[1]), shape
