"""Replaces each `nn.Dropout` of an existing network with `Dropout` (`replace_dropout`).

Guarantees: every other cell and parameter is unchanged and keeps its name; nothing is compiled or run. Main thread
only, before the network's first call: a graph that is already compiled does not change.
"""

from __future__ import annotations

from mindspore import nn

from ckptkit.mindspore.nn.dropout import Dropout, drops_nothing
from ckptkit.mindspore.nn.sequential import called_by, cells_of, put, registered_in


def replace_dropout(network: nn.Cell, *, seed: int = 0) -> nn.Cell:
    """Put a `Dropout` of the same ``p`` wherever ``network`` has an `nn.Dropout`; returns ``network``.

    This includes layers in an `nn.SequentialCell`, also one that it calls although another layer has taken its name.
    Layers with ``p=0`` and classes derived from `nn.Dropout` that compute something else are not replaced. The
    parameters of the new layers are named by their path: ``blocks.0.drop.key``. So pass the whole network, before the
    `StateManager` or `CheckpointCallback` gets it. These parameters are integers: create anything that uses all
    parameters of the network, such as an average of them, before this call. Layers that draw in other ways, such as
    `nn.Dropout2d`, stay; a start names them.

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
        for name, cell in _running(parent).items():
            if _is_replaceable(cell):
                _replace(parent, name, cell, f"{path}.{name}".lstrip("."), seed)
    return network


def _running(parent: nn.Cell) -> dict[str, nn.Cell]:
    """Return the cells that ``parent`` calls, by their names in ``parent``."""
    registered = registered_in(parent)
    listed = called_by(parent)
    # With equal counts each name has one called cell, which may differ from the registered one.
    return dict(zip(registered, listed, strict=True)) if len(listed) == len(registered) else dict(registered)


def _replace(parent: nn.Cell, name: str, cell: nn.Cell, full_name: str, seed: int) -> None:
    there = registered_in(parent)[name]
    if not isinstance(there, Dropout):  # a Dropout that is registered but not called is reused
        there = Dropout(_rate_of(cell), seed)
        there.set_train(cell.training)
    put(parent, name, there)
    # Assignment gives wrong names: a list adds its own prefix and omits the path to itself.
    there.key.name, there.step.name = f"{full_name}.key", f"{full_name}.step"


def _is_replaceable(cell: nn.Cell) -> bool:
    computes_the_same = isinstance(cell, nn.Dropout) and type(cell).construct is nn.Dropout.construct
    return computes_the_same and not drops_nothing(cell)


def _rate_of(dropout: nn.Cell) -> float:
    # nn.Dropout takes p or keep_prob; p is None if only keep_prob was given.
    return float(dropout.p) if dropout.p is not None else 1.0 - float(dropout.keep_prob)
