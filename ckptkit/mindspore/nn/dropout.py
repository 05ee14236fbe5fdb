"""Implements `Dropout`, whose masks are a function of numbers that a checkpoint holds, and `replace_dropout`.

Guarantees: the mask is computed from (key, step, index of the element) with 32-bit integers, so it is the same in GRAPH
and PYNATIVE, in every process and with any number of threads. Under recomputation (``cell.recompute()``) the forward
runs twice and would draw another mask for the gradient: do not recompute a block that holds this cell. Main thread.
"""

from __future__ import annotations

import itertools
from typing import Any

import mindspore as ms
from mindspore import nn, ops

from ckptkit.mindspore.nn.sequential import cells_of, put, registered_in

# Constants of the finalizer of MurmurHash3 (Austin Appleby, public domain), as signed 32-bit numbers.
_FIRST = -2048144789  # 0x85EBCA6B
_SECOND = -1028477387  # 0xC2B2AE35
_GOLDEN = -1640531527  # 0x9E3779B9, 2**32 over the golden ratio: spreads consecutive numbers

_layers = itertools.count()


class Dropout(nn.Cell):
    """Zeroes elements with probability ``p`` while training, as `nn.Dropout`, and resumes exactly.

    The bits of an element are the MurmurHash3 finalizer (without its last step) of its index, keyed before and
    within by two hashes of the cell's key and its step. The element is kept if these bits, as a signed number, are at
    least ``p * 2**32 - 2**31``. The step advances by one at every forward in training, never in evaluation.

    Layers of one network draw different masks, also with one ``seed``: the key is a hash of the seed and of how
    many layers were made before in this process. A resumed run takes the key from the checkpoint, so a script
    that makes more or fewer layers before still resumes exactly. A deep copy gets its own key.
    `mindspore.set_seed` has no influence.

    Args:
        p: Probability that an element is zeroed, in [0, 1). The others are scaled by ``1 / (1 - p)``.
        seed: Another seed gives other masks.
        layer: Replaces the number of layers made before, for masks that do not depend on it.

    Inputs:
        x: Float16 or float32, of any shape; less than 2**31 elements.

    Outputs:
        Of the shape and dtype of ``x``.

    Raises:
        ValueError: If ``p`` is outside of [0, 1).
        TypeError: If ``seed`` or ``layer`` is not an int.
    """

    def __init__(self, p: float = 0.5, seed: int = 0, *, layer: int | None = None) -> None:
        super().__init__()
        if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p < 1:
            raise ValueError(f"p must be a number in [0, 1), got {p!r}")
        for name, value in (("seed", seed), ("layer", 0 if layer is None else layer)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {value!r}")
        self.p = float(p)
        self.seed = seed
        self._scale = 1.0 / (1.0 - self.p)
        self._threshold = min(round(self.p * 2**32), 2**32 - 1) - 2**31
        key = _key(seed, next(_layers) if layer is None else layer)
        self.key = ms.Parameter(ms.Tensor(key, ms.int32), name="key", requires_grad=False)
        self.step = ms.Parameter(ms.Tensor(0, ms.int32), name="step", requires_grad=False)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        """Drop elements of ``x``; see the class."""
        if not self.training or self.p == 0.0:
            return x
        step = self.step * _GOLDEN
        before = _mix(self.key ^ step)
        within = _mix(before + _GOLDEN)
        bits = ops.arange(0, x.size, 1, dtype=ms.int32) ^ before
        bits = (bits ^ _shift(bits, 16)) * _FIRST ^ within
        bits = (bits ^ _shift(bits, 13)) * _SECOND
        # The finalizer's last step only improves the low bits, which hardly affect a comparison.
        kept = ops.cast(bits >= self._threshold, x.dtype).reshape(x.shape)
        # Advance only after the bits are computed; the graph compiler orders by dependence alone.
        advanced = ops.assign_add(self.step, ops.depend(ms.Tensor(1, ms.int32), bits))
        return ops.depend(x * (kept * self._scale), advanced)

    def extend_repr(self) -> str:
        """Describe the layer as `nn.Dropout` does, with the seed."""
        return f"p={self.p}, seed={self.seed}"

    def __setstate__(self, state: Any) -> None:
        # copy.deepcopy calls this; nn.TransformerEncoder uses it to make its layers from one.
        super().__setstate__(state)
        self.key.set_data(ms.Tensor(_key(self.seed, next(_layers)), ms.int32))


def _shift(bits: ms.Tensor, by: int) -> ms.Tensor:
    """Shift right and fill with zeros; the operator would repeat the sign."""
    return ops.bitwise_right_shift(bits, by) & ((1 << (32 - by)) - 1)


def _mix(bits: ms.Tensor) -> ms.Tensor:
    bits = (bits ^ _shift(bits, 16)) * _FIRST
    bits = (bits ^ _shift(bits, 13)) * _SECOND
    return bits ^ _shift(bits, 16)


def _key(seed: int, layer: int) -> int:
    """Hash ``seed`` and ``layer`` to 32 bits, signed: the finalizer over the seed's low and high half and the layer."""
    bits = 0
    for part in (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, layer & 0xFFFFFFFF):
        bits = (bits ^ part) + 0x9E3779B9 & 0xFFFFFFFF
        bits = (bits ^ bits >> 16) * 0x85EBCA6B & 0xFFFFFFFF
        bits = (bits ^ bits >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
        bits ^= bits >> 16
    return bits - (bits >> 31 << 32)


def replace_dropout(network: nn.Cell, *, seed: int = 0) -> nn.Cell:
    """Put a `Dropout` of the same ``p`` wherever ``network`` has an `nn.Dropout`; returns ``network``.

    Layers with ``p=0`` and classes derived from `nn.Dropout` that compute something else are not replaced. The
    parameters of the new layers are named by their path: ``blocks.0.drop.key``. So pass the whole network, before its
    first call, and before the `StateManager` or `CheckpointCallback` gets it. These parameters are integers: create
    anything that uses all parameters of the network, such as an average of them, before this call. Layers that draw in
    other ways, such as `nn.Dropout2d`, stay; a start names them. So does a layer that an `nn.SequentialCell` calls
    although another one has taken its name.

    Args:
        network: Holds the layers; one that is itself an `nn.Dropout` cannot be changed in place.
        seed: As for `Dropout`.

    Raises:
        TypeError: If ``network`` is not a cell that could hold a layer.
    """
    if not isinstance(network, nn.Cell) or _is_replaceable(network):
        raise TypeError(
            f"replace_dropout takes a network with nn.Dropout in it, got {type(network).__name__}. In place of a "
            "single layer make a ckptkit.nn.Dropout"
        )
    for path, parent, _ in list(cells_of(network)):
        for name, cell in registered_in(parent).items():
            if _is_replaceable(cell):
                # nn.Dropout takes p or keep_prob; p is None if only keep_prob was given.
                replacement = Dropout(float(cell.p) if cell.p is not None else 1.0 - float(cell.keep_prob), seed)
                replacement.set_train(cell.training)
                put(parent, name, replacement)
                # Assignment gives wrong names: a list adds its own prefix and omits the path to itself.
                full_name = f"{path}.{name}".lstrip(".")
                replacement.key.name, replacement.step.name = f"{full_name}.key", f"{full_name}.step"
    return network


def _is_replaceable(cell: nn.Cell) -> bool:
    computes_the_same = isinstance(cell, nn.Dropout) and type(cell).construct is nn.Dropout.construct
    return computes_the_same and not drops_nothing(cell)


def drops_nothing(dropout: nn.Cell) -> bool:
    """Return whether a MindSpore dropout cell has p = 0."""
    # nn.Dropout leaves the argument that was not given at its default: p at None, keep_prob at 0.5.
    return getattr(dropout, "p", None) == 0 or getattr(dropout, "keep_prob", None) == 1
