"""Applies elementwise operations to a whole tuple of gradients, in GRAPH and PYNATIVE alike.

Everything is float32 except the result of `cast_like`. The graph compiler would unroll a Python loop over the tuple
into nested calls and fail from some 200 weights on; hence `HyperMap`. Main thread only.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import ops

hyper_map = ops.HyperMap()
add = ops.MultitypeFuncGraph("add")
add_weighted = ops.MultitypeFuncGraph("add_weighted")
divide = ops.MultitypeFuncGraph("divide")
scale = ops.MultitypeFuncGraph("scale")
sum_of_squares = ops.MultitypeFuncGraph("sum_of_squares")
count_nonfinite = ops.MultitypeFuncGraph("count_nonfinite")
cast_like = ops.MultitypeFuncGraph("cast_like")
zero = ops.MultitypeFuncGraph("zero")
flatten = ops.MultitypeFuncGraph("flatten")
assign_part = ops.MultitypeFuncGraph("assign_part")


@add.register("Tensor", "Tensor")
def _add(total: ms.Parameter, grad: ms.Tensor) -> ms.Tensor:
    return ops.assign_add(total, ops.cast(grad, ms.float32))


@add_weighted.register("Tensor", "Tensor", "Tensor", "Tensor")
def _add_weighted(weight: ms.Tensor, scale: ms.Tensor, total: ms.Parameter, grad: ms.Tensor) -> ms.Tensor:
    # Do not multiply by the reciprocal: for the largest scales it is too small for a normal float32.
    return ops.assign_add(total, ops.cast(grad, ms.float32) / scale * weight)


@divide.register("Tensor", "Tensor")
def _divide(divisor: ms.Tensor, total: ms.Tensor) -> ms.Tensor:
    return total / divisor


@scale.register("Tensor", "Tensor")
def _scale(factor: ms.Tensor, grad: ms.Tensor) -> ms.Tensor:
    return grad * factor


@sum_of_squares.register("Tensor")
def _sum_of_squares(grad: ms.Tensor) -> ms.Tensor:
    return ops.reduce_sum(ops.square(grad))


@count_nonfinite.register("Tensor")
def _count_nonfinite(total: ms.Tensor) -> ms.Tensor:
    return ops.reduce_sum(ops.cast(ops.logical_not(ops.isfinite(total)), ms.float32))


@cast_like.register("Tensor", "Tensor")
def _cast_like(weight: ms.Tensor, grad: ms.Tensor) -> ms.Tensor:
    return ops.cast(grad, weight.dtype)


@zero.register("Tensor")
def _zero(total: ms.Parameter) -> ms.Tensor:
    return ops.assign(total, ops.zeros_like(total))


@flatten.register("Tensor")
def _flatten(total: ms.Parameter) -> ms.Tensor:
    return ops.reshape(total, (-1,))


@assign_part.register("Tensor", "Tensor", "Number")
def _assign_part(flat: ms.Tensor, total: ms.Parameter, offset: int) -> ms.Tensor:
    # The graph compiler would unroll ops.split; see the module's docstring.
    return ops.assign(total, ops.reshape(ops.slice(flat, (offset,), (total.size,)), total.shape))
