"""Looks into lists, tuples, dicts and arrays of the user's, without running their code.

Guarantees: bypasses any ``__iter__`` and ``__getitem__`` of the user's. Any thread.
"""

from __future__ import annotations

import ast
import enum
import gc
import itertools
import types
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.experimental.optim.lr_scheduler import LRScheduler
from mindspore.train import Callback

from ckptkit.mindspore.inspect.attributes import UNKNOWN, met, own_attributes
from ckptkit.mindspore.inspect.contents import below, items_now
from ckptkit.mindspore.inspect.users import is_of_users

FEW = 8  # lists up to this length are read item by item
_SAMPLE = 64  # of a longer list, of which one object of each class is read
VIEWS = ("T", "flat", "mT")  # attributes of an array that share its memory
VIEW_METHODS = ("asnumpy", "reshape", "ravel", "view", "transpose", "squeeze", "swapaxes")
_CONTAINERS: tuple[Any, ...] = (list, tuple, deque)
_CELLS = (nn.CellList, nn.SequentialCell)
_MOST = 20_000  # objects that are known
_NOT_IN_STATE_DICT = ("lr_lambdas",)  # of schedulers; `test_object_in_a_scheduler_is_named` fails if it moves
_NOT_SEARCHED = (
    *(types.ModuleType, types.MethodType, types.FunctionType, type),
    *(Tensor, str, int, float, types.NoneType),
)
_DATA = (type(None), bool, int, float, complex, str, bytes, np.generic)
_CHANGED_IN_PLACE = (np.ndarray, Tensor, list, dict, set, deque)


def is_changed_in_place(one: Any) -> bool:
    """Return whether an operator with an assignment, such as ``+=``, changes the object, and makes no other one."""
    return isinstance(one, _CHANGED_IN_PLACE)


def is_taken(one: Any) -> bool:
    """Return whether the object is a value that was taken from something, and not a parameter itself, or a cell."""
    first = item_of(one)[0] if isinstance(one, (list, tuple, dict)) else one
    return isinstance(first, (bool, int, float, np.ndarray, np.generic, Tensor)) and not isinstance(first, Parameter)


def items_of(target: Any, most: int) -> list[Any]:
    """Return the first items of a container: of a dict its values, of a list of cells these, of an enum its members."""
    if issubclass(type(target), enum.EnumMeta):
        return [*itertools.islice((own_attributes(target).get("_member_map_") or {}).values(), most)]
    if isinstance(target, _CELLS):
        return [*itertools.islice((own_attributes(target).get("_cells") or {}).values(), most)]
    base = next((one for one in (dict, *_CONTAINERS) if isinstance(target, one)), None)
    items = items_now(base, target, most) if base is not None else []
    return [met(one[1] if base is dict else one) for one in items]


def choices(items: Iterable[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return an object that stands for all of them, and the others that are more than data."""
    items = [*items]
    by_id = {id(one): one for one in items if one is not UNKNOWN and not isinstance(one, _DATA)}
    if not by_id:
        return next(iter(items), UNKNOWN), ()
    first, *others = by_id.values()
    return first, tuple(others)


def item_of(target: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return one item that stands for all items of a container, and others: the first few, and one of each class."""
    first = items_of(target, FEW)
    if len(first) < FEW or all(isinstance(one, _DATA) for one in first):
        return choices(first)
    known = {type(one) for one in first}
    further = {type(one): one for one in reversed(items_of(target, _SAMPLE)[FEW:]) if type(one) not in known}
    return choices([*first, *further.values()])


def item_at(target: Any, index: ast.expr) -> tuple[Any, tuple[Any, ...]]:
    """Return what an index gives: one item, or one that stands for all, and the others."""
    if isinstance(target, (np.ndarray, Tensor)):
        is_part = isinstance(index, (ast.Slice, ast.Tuple)) or target.ndim > 1
        return (target if is_part else UNKNOWN), ()
    if isinstance(index, ast.Slice):
        return target if isinstance(target, _CONTAINERS) else UNKNOWN, ()
    try:
        key = ast.literal_eval(index)
        if isinstance(target, dict):
            return met(dict.get(target, key, UNKNOWN)), ()
        if isinstance(target, _CELLS):
            return items_of(target, _SAMPLE)[key], ()
        base = next((one for one in _CONTAINERS if isinstance(target, one)), None)
        if base is not None:
            return met(base.__getitem__(target, key)), ()
    except (ValueError, TypeError, IndexError):  # no constant, or no such item
        pass
    return item_of(target)


def is_whole(index: ast.expr) -> bool:
    """Return whether it is ``[:]`` or ``[...]``."""
    if isinstance(index, ast.Slice):
        return index.lower is None and index.upper is None and index.step is None
    return isinstance(index, ast.Constant) and index.value is ...


def contents(known: Iterable[Any]) -> dict[int, Any]:
    """Return the objects and their contents, by id, but not what their code names."""
    seen: dict[int, Any] = {}
    waiting = deque(known)
    while waiting and len(seen) < _MOST:
        one = waiting.popleft()
        if id(one) in seen or isinstance(one, _NOT_SEARCHED):
            continue
        seen[id(one)] = one
        if not isinstance(one, (nn.Cell, np.ndarray)):
            if isinstance(one, Callback) and not is_of_users(one):
                continue  # the functions of the user's that it calls are in no checkpoint
            without = _NOT_IN_STATE_DICT if isinstance(one, LRScheduler) else ()
            waiting.extend(value for _, value in below(one, without))
    return seen


def results_in(cache: Any) -> list[Any]:
    """Return what a function with `functools.cache` or `lru_cache` has returned, as its cache keeps it."""
    held = gc.get_referents(cache)
    if cache.cache_parameters()["maxsize"] is None:
        return [value for one in held if type(one) is dict and one is not vars(cache) for value in one.values()]
    links = [at for at, one in enumerate(held) if isinstance(one, type) and one.__name__ == "_lru_list_elem"]
    before = [held[at - 1] for at in links]  # of each link, its result; of the cache itself, a mark
    return [one for one in before if type(one) is not object]
