"""Runs the second graph of a train cell, which ends a cycle: averages, clips, applies and zeroes the sums.

Main thread only.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import nn, ops

from ckptkit.mindspore.train import gradients


class Update(nn.Cell):
    """Gives the averaged, clipped gradients to the optimizer and zeroes the accumulators.

    Returns the global norm of the averaged gradients before clipping, float32 ().
    """

    def __init__(
        self, optimizer: nn.Optimizer, sums: ms.ParameterTuple, divisor: ms.Parameter, clip_norm: float | None
    ) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.weights = optimizer.parameters
        self.sums = sums
        self.divisor = divisor
        self.clip_norm = clip_norm

    def construct(self) -> Any:
        """Return the norm."""
        # Zero only if `normalize` is "weights" and the cycle's total weight is zero; then the sums are zero too.
        divisor = ops.select(self.divisor == 0, ops.ones_like(self.divisor), self.divisor)
        grads = gradients.hyper_map(ops.partial(gradients.divide, divisor), self.sums)
        norm = ops.sqrt(ops.addn(gradients.hyper_map(gradients.sum_of_squares, grads)))
        if self.clip_norm is not None:
            # Exactly 1.0 if the norm is not larger, so that the gradients keep their bits.
            factor = self.clip_norm / ops.maximum(norm, self.clip_norm)
            grads = gradients.hyper_map(ops.partial(gradients.scale, factor), grads)
        updated = self.optimizer(gradients.hyper_map(gradients.cast_like, self.weights, grads))
        zeroed = gradients.hyper_map(gradients.zero, self.sums), ops.assign(self.divisor, 0.0)
        return ops.depend(norm, (updated, zeroed))


class Clear(nn.Cell):
    """Zeroes the accumulators without an update."""

    def __init__(self, sums: ms.ParameterTuple, divisor: ms.Parameter) -> None:
        super().__init__(auto_prefix=False)
        self.sums = sums
        self.divisor = divisor

    def construct(self) -> Any:
        """Return the divisor, which is zero by then."""
        zeroed = gradients.hyper_map(gradients.zero, self.sums)
        return ops.depend(ops.assign(self.divisor, 0.0), zeroed)


class Finite(nn.Cell):
    """Returns whether every sum is finite, bool (); an overflow in any micro-step of the cycle stays in its sum."""

    def __init__(self, sums: ms.ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        self.sums = sums

    def construct(self) -> Any:
        """Return whether every sum is finite."""
        return ops.addn(gradients.hyper_map(gradients.count_nonfinite, self.sums)) == 0
