"""State of objects that hold parameters but do not say what of them belongs in a checkpoint.

Guarantees: an object with ``state_dict()`` and ``load_state_dict()`` of its own is asked for them; of any other
one, every parameter that it holds is stored under its place in it (``scale_value``, ``_last_lr/0``), restored
bit for bit into the storage that it has, and compared before anything is changed. Plain Python attributes of
such an object are not stored. Main thread only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import mindspore as ms
from mindspore import nn

from ckptkit.errors import StateMismatchError
from ckptkit.mindspore.apply import assign
from ckptkit.mindspore.findings.attributes import own_attributes
from ckptkit.tensors import Leaf, leaf_of

_MAX_DEPTH = 8  # of containers and objects in an object; deeper ones are no state of it


@runtime_checkable
class Stateful(Protocol):
    """Any object of the user's own that a checkpoint should hold."""

    def state_dict(self) -> Any:
        """Plain values, containers and NumPy arrays; must not advance the object."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Take over what `state_dict` returned, in another process."""
        ...


class ParameterHolder:
    """The parameters of an object, as a stateful object.

    Args:
        name: That the object was given by.
        parameters: By their place in the object.
    """

    def __init__(self, name: str, parameters: Mapping[str, ms.Parameter]) -> None:
        self._name = name
        self._parameters = dict(parameters)

    def state_dict(self) -> dict[str, Any]:
        """Of each its dtype and its bits, which may be live memory: good between two micro-steps."""
        return {place: [leaf.dtype, leaf.array] for place, leaf in self._leaves().items()}

    def check(self, state: Any) -> None:
        """Compare with what a checkpoint has, before anything is changed.

        Raises:
            StateMismatchError: If the parameters are others; names each one.
        """
        found = state if isinstance(state, dict) else {}
        mine = self._leaves()
        problems = [f"missing in the checkpoint: {place}" for place in sorted(mine.keys() - found.keys())]
        problems += [f"not in this object: {place}" for place in sorted(found.keys() - mine.keys())]
        for place in sorted(mine.keys() & found.keys()):
            dtype, array = found[place]
            if (dtype, array.shape) != (mine[place].dtype, mine[place].shape):
                problems.append(
                    f"{place}: the checkpoint has {dtype} {list(array.shape)}, "
                    f"this object has {mine[place].dtype} {list(mine[place].shape)}"
                )
        if problems:
            raise StateMismatchError(
                f"the checkpoint does not fit the stateful object {self._name}. Nothing was changed. Build it as it "
                "was, or start under another root:\n  " + "\n  ".join(problems)
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give each parameter its stored value."""
        for place, (dtype, array) in state.items():
            assign(self._parameters[place], array, dtype)

    def _leaves(self) -> dict[str, Leaf]:
        return {place: leaf_of(place, one.asnumpy(), role="state") for place, one in self._parameters.items()}


def stateful_of(name: str, one: Any) -> Stateful:
    """How the state of ``one``, given as ``name``, is stored.

    Raises:
        TypeError: If it has neither the two methods nor a parameter.
    """
    # nn.Cell has both methods, but they take and give parameters, which have no place in a checkpoint.
    own = not isinstance(one, nn.Cell) or type(one).state_dict is not nn.Cell.state_dict
    if own and not isinstance(one, type) and all(_has(one, method) for method in ("state_dict", "load_state_dict")):
        return cast(Stateful, one)
    parameters = dict(_parameters(one, ""))
    if not parameters:
        raise TypeError(f"{name}: a {type(one).__name__} has no state_dict() and load_state_dict(), and no parameters")
    return ParameterHolder(name, parameters)


def _has(one: Any, method: str) -> bool:
    try:
        return callable(getattr(one, method))  # as it will be called: an object may hand it on to another one
    except (AttributeError, LookupError):  # ``__getattr__ = dict.__getitem__`` raises KeyError
        return False


def _parameters(one: Any, place: str, depth: int = 0) -> Iterator[tuple[str, ms.Parameter]]:
    if isinstance(one, ms.Parameter):
        yield place or "value", one
    elif isinstance(one, nn.Cell):
        # A cell inside of an object is its tool (a scheduler's optimizer), and state of the training's cells.
        yield from ((parameter.name, parameter) for parameter in one.get_parameters() if not place)
    elif depth < _MAX_DEPTH:
        for key, value in _children(one):
            yield from _parameters(value, f"{place}/{key}" if place else str(key), depth + 1)


def _children(one: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(one, Mapping):
        yield from one.items()
    elif isinstance(one, (list, tuple)):
        yield from enumerate(one)
    elif not isinstance(one, (type, ms.Tensor)):
        yield from own_attributes(one).items()
