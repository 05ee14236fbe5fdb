"""MindSpore's layouts as boxes: examples worked by hand, since none can be made on CPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ckptkit.core.placement import Box
from ckptkit.mindspore.parameters.shardings import Layout, box_of


def layout(device_matrix, tensor_map, full_shape, group="", **fields):
    return Layout(device_matrix, tensor_map, [], 0, True, group, full_shape)._replace(**fields)


# Devices 0 1 2 3 as [[0, 1], [2, 3]]; tensor_map counts axes from the right: 0 is the columns, 1 the rows.
@pytest.mark.parametrize(
    ("tensor_map", "boxes"),
    [
        # Rows of the tensor over rows of the matrix, columns over columns.
        ([1, 0], {0: ((0, 0), 0), 1: ((0, 3), 0), 2: ((4, 0), 0), 3: ((4, 3), 0)}),
        ([0, 1], {0: ((0, 0), 0), 1: ((4, 0), 0), 2: ((0, 3), 0), 3: ((4, 3), 0)}),
        # Rows over columns of the matrix: devices 0 and 2 hold the same.
        ([0, -1], {0: ((0, 0), 0), 1: ((4, 0), 0), 2: ((0, 0), 1), 3: ((4, 0), 1)}),
        ([-1, 1], {0: ((0, 0), 0), 1: ((0, 0), 1), 2: ((0, 3), 0), 3: ((0, 3), 1)}),
        ([], {0: ((0, 0), 0), 3: ((0, 0), 3)}),
        ([-1, -1], {0: ((0, 0), 0), 1: ((0, 0), 1), 2: ((0, 0), 2), 3: ((0, 0), 3)}),
    ],
)
def test_devices_hold_what_one_works_out_by_hand(tensor_map, boxes):
    for position, (offsets, replica) in boxes.items():
        box, shape = box_of(layout([2, 2], tensor_map, [8, 6]), position)
        assert box == Box((8, 6), offsets, replica)
        assert shape == (4 if offsets_differ(boxes, 0) else 8, 3 if offsets_differ(boxes, 1) else 6)


def offsets_differ(boxes, axis):
    return len({offsets[axis] for offsets, _ in boxes.values()}) > 1


def test_optimizer_group_cuts_first_axis_again():
    """Four devices, tensor cut in two by the columns of the matrix, and each half over its two replicas."""
    found = {p: box_of(layout([2, 2], [0, -1], [8, 6], "group"), p, (p // 2, 2)) for p in range(4)}
    offsets = {0: (0, 0), 2: (2, 0), 1: (4, 0), 3: (6, 0)}
    assert found == {p: (Box((8, 6), at), (2, 6)) for p, at in offsets.items()}


def test_partial_optimizer_group_leaves_replicas():
    found = [box_of(layout([4], [-1], [8], "group"), p, (p % 2, 2)) for p in range(4)]
    assert [(box.offsets, box.replica, shape) for box, shape in found] == [
        ((0,), 0, (4,)),
        ((4,), 0, (4,)),
        ((0,), 1, (4,)),
        ((4,), 1, (4,)),
    ]


@pytest.mark.parametrize("tensor_map", [[2, -1, 0], [0, 2, 1], [-1, 1, -1], [-1, -1, -1]])
def test_the_first_replicas_tile_the_whole(tensor_map):
    whole = np.zeros((12, 6, 12), int)
    for position in range(12):
        box, shape = box_of(layout([2, 3, 2], tensor_map, whole.shape), position)
        if box.replica == 0:
            whole[tuple(slice(at, at + size) for at, size in zip(box.offsets, shape, strict=True))] += 1
    assert (whole == 1).all()


@pytest.mark.parametrize(
    ("changes", "group", "words"),
    [
        ({"field_size": 3}, (0, 1), "by fields"),
        ({"uniform_split": False}, (0, 1), "uneven"),
        ({"full_shape": [7, 6]}, (0, 1), "does not divide"),
        ({"slice_shape": [24]}, (0, 1), "gives the part"),
        ({"opt_shard_group": "g"}, (0, 1), "opt_shard_group is 'g'"),
        ({}, (0, 2), "opt_shard_group is ''"),
        ({"opt_shard_group": "g"}, (1, 2), "not \\(1, 2\\) in its group"),
        ({"opt_shard_group": "g"}, (0, 3), "in its group"),
    ],
)
def test_what_cannot_be_told_is_refused(changes, group, words):
    with pytest.raises(ValueError, match=words):
        box_of(layout([2, 2], [0, -1], [8, 6])._replace(**changes), 0, group)


def test_positions_are_those_of_the_device_matrix():
    places = [box_of(layout([2, 3], [1, 0], [2, 3]), p)[0].offsets for p in range(6)]
    assert places == list(itertools.product(range(2), range(3)))
