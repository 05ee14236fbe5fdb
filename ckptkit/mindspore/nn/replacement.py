"""`replace_dropout`: puts `Dropout` in place of the `nn.Dropout` of a network that somebody else has written.

Guarantees: every other cell and parameter stays what it is, under its name; nothing is compiled or run. Main thread
only, before the network is called for the first time: a graph that was compiled before goes on as it is.
"""

from __future__ import annotations

from mindspore import nn

from ckptkit.mindspore.inspect.operators import drops_nothing
from ckptkit.mindspore.inspect.sequential import called_by, cells_of, put, registered_in
from ckptkit.mindspore.nn.dropout import Dropout


def replace_dropout(network: nn.Cell, *, seed: int = 0) -> nn.Cell:
    """Put a `Dropout` of the same ``p`` wherever ``network`` has an `nn.Dropout`; returns ``network``.

    Those in an `nn.SequentialCell` included, also one that it calls though another layer has taken its name. Left alone
    are layers with ``p=0``, and classes derived from `nn.Dropout` that compute something else. The parameters of the
    new layers are named by where they are: ``blocks.0.drop.key``. So give it the whole network, before the
    `StateManager` or `CheckpointCallback` sees it. They hold whole numbers: what takes all parameters of the network,
    such as an average of them, must be made before. Layers that draw by other ways, such as `nn.Dropout2d`, stay; a
    start names them.

    Args:
        network: Holds the layers; one that is itself an `nn.Dropout` cannot be changed in place.
        seed: As for `Dropout`.

    Raises:
        TypeError: If ``network`` is no cell that could hold one.
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
    """What ``parent`` calls, by the names that it has in ``parent``."""
    registered = registered_in(parent)
    listed = called_by(parent)
    # As many: behind each name is one, though perhaps another than the one that the name stands for.
    return dict(zip(registered, listed, strict=True)) if len(listed) == len(registered) else dict(registered)


def _replace(parent: nn.Cell, name: str, cell: nn.Cell, full_name: str, seed: int) -> None:
    there = registered_in(parent)[name]
    if not isinstance(there, Dropout):  # one that took the name only shall be called at last
        there = Dropout(_rate_of(cell), seed)
        there.set_train(cell.training)
    put(parent, name, there)
    # Not what assigning gave them: a list puts its own prefix before, and forgets the path to itself.
    there.key.name, there.step.name = f"{full_name}.key", f"{full_name}.step"


def _is_replaceable(cell: nn.Cell) -> bool:
    computes_the_same = isinstance(cell, nn.Dropout) and type(cell).construct is nn.Dropout.construct
    return computes_the_same and not drops_nothing(cell)


def _rate_of(dropout: nn.Cell) -> float:
    # nn.Dropout leaves the argument that was not given at its default.
    return float(dropout.p) if dropout.p is not None else 1.0 - float(dropout.keep_prob)
