"""A box is the very slice that MindSpore's own loader takes of a whole tensor, for the same layout and rank.

The loader is private and pure Python, and the only word on layouts that runs on CPU.
"""

from __future__ import annotations

import itertools

import mindspore as ms
import numpy as np
import pytest
from mindspore.parallel._tensor import _load_tensor

from ckptkit.mindspore.parameters.shardings import Layout, box_of


@pytest.mark.parametrize("device_matrix", [[4], [2, 2], [2, 3], [3, 1, 2]])
def test_the_box_is_mindspore_s_slice(device_matrix):
    whole = np.arange(12 * 6 * 6, dtype=np.int32).reshape(12, 6, 6)
    axes = [-1, *range(len(device_matrix))]
    compared = 0
    for tensor_map in itertools.product(axes, repeat=3):
        used = [one for one in tensor_map if one != -1]
        counts = [1 if m == -1 else device_matrix[-1 - m] for m in tensor_map]
        if len(set(used)) != len(used) or any(n % count for n, count in zip(whole.shape, counts, strict=True)):
            continue
        for rank in range(int(np.prod(device_matrix))):
            layout = Layout(device_matrix, list(tensor_map), [], 0, True, "", list(whole.shape))
            box, shape = box_of(layout, rank)
            ours = whole[tuple(slice(at, at + size) for at, size in zip(box.offsets, shape, strict=True))]
            theirs = _load_tensor(ms.Tensor(whole), device_matrix, list(tensor_map), list(whole.shape), rank)
            assert np.array_equal(ours, theirs)
            compared += 1
    assert compared >= 8
