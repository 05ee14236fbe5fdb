"""Finds parameters that training code can reach and no checkpoint holds, each with the object that holds it.

Guarantees: runs no user code. The search below each object has its own limit, nearest objects first, so that a large
one hides no other. Main thread only.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import threading
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Collection, Iterator
from types import FunctionType, GeneratorType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import amp, nn
from mindspore.nn.optim.optimizer import _IteratorLearningRate
from mindspore.ops import Primitive

from ckptkit.mindspore.inspect.attributes import UNKNOWN, in_slots, met, methods_of
from ckptkit.mindspore.inspect.carried_attributes import beside_bare
from ckptkit.mindspore.inspect.contents import below
from ckptkit.mindspore.inspect.users import is_mindspores, is_of_users

CONTAINERS = (dict, list, tuple, deque)
_MOST = 5_000  # objects searched below one start object
# These never change: the scale of a StaticLossScaler, and a table of rates, of which an optimizer keeps more than it
# uses.
_CONSTANT = (amp.StaticLossScaler, _IteratorLearningRate)
_NOTHING = (str, bytes, int, float, type(None), np.ndarray, np.generic, Primitive, type, *_CONSTANT)
# Python's own objects that hold what users put in; `is_users` is False for their classes.
_HOLDERS = (SimpleNamespace, argparse.Namespace, threading.local, UserDict, UserList, ChainMap)
_CODE = (FunctionType, MethodType, GeneratorType, functools.partial)


class Holder(NamedTuple):
    """Describes an object that holds parameters that are in no checkpoint.

    Attributes:
        path: The expression for the object.
        one: The object.
        held: Names of the parameters.
    """

    path: str
    one: Any
    held: list[str]


class Held:
    """Searches below one object after the other, each reached object once.

    Args:
        known: ``id`` of every object that checkpoints hold, including parameters.
    """

    def __init__(self, known: Collection[int]) -> None:
        self._known = known
        self._seen: dict[int, Any] = {}  # holds the objects, so that no id is reused
        self._met: list[tuple[str, nn.Cell]] = []

    def around(self, cell: nn.Cell) -> Iterator[Holder]:
        """Do as `below` for the code and each attribute of a cell whose own parameters and cells are known."""
        for part, value in _below_cell(cell):
            if self._may_lead_on(value):  # skips the some seventy attributes per cell that lead nowhere
                yield from self.below(part[1:], value)

    def below(self, path: str, value: Any) -> Iterator[Holder]:
        """Yield each object at ``value`` and below that holds such parameters, once."""
        found: dict[int, Holder] = {}
        waiting: deque[tuple[str, Any, Holder | None, str]] = deque([(path, value, None, "")])
        for _ in range(_MOST):
            if not waiting:
                break
            path, value, holder, name = waiting.popleft()
            if not self._may_lead_on(value):
                continue
            self._seen[id(value)] = value
            if isinstance(value, ms.Tensor):
                if isinstance(value, ms.Parameter):
                    holder = holder or Holder(path, value, [])
                    if (called := name or value.name) not in holder.held:
                        holder.held.append(called)
                    found.setdefault(id(holder.one), holder)
                continue
            if isinstance(value, nn.Cell):
                self._met.append((path, value))
                held = [one for one in value.get_parameters() if not self._is_known(one)]
                if held:
                    found[id(value)] = Holder(path, value, [one.name for one in held])
                    self._seen.update((id(one), one) for one in held)
            waiting.extend(self._following(path, value, holder, name))
        yield from found.values()

    def met(self) -> list[tuple[str, nn.Cell]]:
        """Return the cells reached since this was called last, each with its place."""
        met, self._met = self._met, []
        return met

    def _following(
        self, path: str, value: Any, holder: Holder | None, name: str
    ) -> Iterator[tuple[str, Any, Holder | None, str]]:
        """Yield what is below ``value``, with the holder of any parameter there and the parameter's name in it."""
        if isinstance(value, CONTAINERS):
            holder = holder or Holder(path, value, [])
            yield from ((f"{path}{part}", one, holder, name) for part, one in below(value))
        elif isinstance(value, _CODE):
            yield from ((f"{path}{part}", one, None, "") for part, one in below(value))
        elif isinstance(value, nn.Cell):
            yield from ((f"{path}{part}", one, None, "") for part, one in _below_cell(value))
        elif isinstance(value, _HOLDERS) or is_of_users(value) or is_mindspores(value):
            holder = Holder(path, value, [])
            yield from ((f"{path}{part}", one, holder, part[1:]) for part, one in below(value))

    def _may_lead_on(self, value: Any) -> bool:
        if met(value) is UNKNOWN:
            return False
        return not isinstance(value, _NOTHING) and id(value) not in self._known and id(value) not in self._seen

    def _is_known(self, one: ms.Parameter) -> bool:
        return id(one) in self._known or id(one) in self._seen


def _below_cell(cell: nn.Cell) -> Iterator[tuple[str, Any]]:
    """Yield the code and the attributes of a cell; see `below`."""
    slots = ((name, met(value)) for name, value in in_slots(cell))
    for name, value in itertools.chain(beside_bare(cell).items(), slots, methods_of(type(cell))):
        # An optimizer whose groups have no rates of their own keeps the default one here, and uses another.
        if name != "group_lr" or not isinstance(cell, nn.Optimizer):
            yield f".{name}", value
