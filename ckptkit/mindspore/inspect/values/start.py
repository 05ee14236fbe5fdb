"""Digests the arrays, lists, numbers and choices that a script makes at each start, and that no checkpoint holds.

Guarantees: reads plain attributes of cells, variables of the running code, and those of the functions and objects that
it leads to; a bounded part of each. Runs nothing of the user's. Equal values have equal digests in every process. Main
thread only.
"""

from __future__ import annotations

import argparse
import enum
import functools
import itertools
import os
import re
import types
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import mindspore as ms
import numpy as np
import xxhash
from mindspore import nn
from mindspore.nn.learning_rate_schedule import LearningRateSchedule
from mindspore.ops import Primitive

from ckptkit.mindspore.inspect.attributes import members_of, own_attributes
from ckptkit.mindspore.inspect.carried_attributes import beside_bare, read_by_construct
from ckptkit.mindspore.inspect.contents import below
from ckptkit.mindspore.inspect.frames import written_texts
from ckptkit.mindspore.inspect.users import is_of_users, is_users
from ckptkit.mindspore.inspect.values.digest import tensor_bytes

_MOST = 200  # arrays and lists that are digested, as many numbers, and as many choices
_ITEMS = 64  # of a list
_BYTES = 1 << 16  # of an array
_NUMBERS = (bool, int, float)
_BITS = 256  # of a number
_NUMBER = "="  # before a single number
_FLOAT = "=~"  # before one with a fraction, which may be a limit
_CHOICE = "?"  # before a choice: a text, a truth value, a slice, or the name of a function or class
_NAME = "?@"  # before that of a function, class, cell or operator
_NOTHING = "?-"  # of None, which may stand for a limit that an earlier run has not set
_WRITTEN = "?/"  # before that of a text that only counts because the script has it in its code
_PATH = re.compile(r"[/~.]|\w+://|.*\.\w{1,6}$", re.DOTALL)  # how a text begins or ends that is a path of the machine
_LONGEST = 64  # of a text that is a choice
_TEXTS = 10_000  # of a list or a table
_ORDERED = ":"  # before the digest of texts in their order
_FURTHEST = 4  # from a variable of the running code
_FEW = 64  # items of a dict that are searched
_MOST_SEARCHED = 2_000  # objects
_ARRAYS = (ms.Tensor, np.ndarray)
_CODE = (types.FunctionType, types.MethodType, functools.partial)
_GROUPS = (tuple, list, set, frozenset)
_NAMED = (types.FunctionType, types.BuiltinFunctionType)
_ONES = (bool, str, bytes, complex, slice)  # Python may keep one object for equal ones
_MAY_CHANGE = (nn.Optimizer, LearningRateSchedule)
_PLAIN = (dict, types.SimpleNamespace, argparse.Namespace)

_Written: TypeAlias = Collection[tuple[type, str | bytes]]


def start_values_of(
    cells: Iterable[nn.Cell], variables: Iterable[tuple[str, object]], named: Iterable[object] = ()
) -> dict[str, str]:
    """Return the digests of arrays, tensors, numbers, choices and lists of numbers or texts, by expressions for them.

    Single numbers and choices are those of the running code and of what it leads to; `is_single` tells their digests.
    A choice is what a script may decide between: a truth value, None, a slice, a short text that is no path, another
    one that is written in it, or which function, class, cell or operator a name stands for.

    Args:
        cells: Cells of the training; those inside of them are read, too.
        variables: Of the running code, each with its place; see `loop_variables`. Of the functions that they lead to,
            variables are read like these; of objects, arrays, single numbers and choices alone.
        named: Objects that checkpoints hold by name. They are left out.
    """
    cells, left_out, written = [*cells], {id(one) for one in named}, written_texts()
    own = [(place, one) for place, one in variables if id(one) not in left_out]
    further = [*_further(own, left_out, written)]
    found = ((name, _digest(value)) for name, value in itertools.chain(_in_cells(cells), own, further))
    arrays = itertools.islice(((name, digest) for name, digest in found if digest is not None), _MOST)
    numbers = itertools.islice(((name, value) for name, value in [*own, *further] if _is_number(value)), _MOST)
    chosen = ((name, choice) for name, value in [*own, *further] if (choice := _choice(value, written)) is not None)
    choices = itertools.islice(sorted(chosen, key=lambda one: one[1].startswith((_NOTHING, _WRITTEN))), _MOST)
    return {
        **{name: f"{_FLOAT if type(value) is float else _NUMBER}{_digest_of(value)}" for name, value in numbers},
        **dict(choices),
        **dict(arrays),
    }


def is_single(digest: str) -> bool:
    """Return whether it is the digest of a number, such as a time, or a choice, on which training may not depend."""
    return digest.startswith((_NUMBER, _CHOICE))


def may_limit(one: str, other: str) -> bool:
    """Return whether one of the digests is that of a whole number, which may say how long to train."""
    return any(digest.startswith(_NUMBER) and not digest.startswith(_FLOAT) for digest in (one, other))


def made(digests: Mapping[str, str]) -> set[str]:
    """Return the names whose values exist already: all but None, which stands for what is made later."""
    return {name for name, digest in digests.items() if digest != _NOTHING}


def variable_of(expression: str) -> str:
    """Return the last variable, attribute or item in an expression of `start_values_of`."""
    found = re.search(r"\w+(\[[^]]*\])*$", expression)
    return found.group() if found is not None else expression


def _is_number(value: object) -> bool:
    kind = type(value)
    return kind is float or issubclass(kind, np.number) or (kind is int and value.bit_length() <= _BITS)  # type: ignore[attr-defined]


def _choice(value: object, written: _Written) -> str | None:
    kind = type(value)
    if value is None:
        return _NOTHING
    if kind in _ONES and not _is_plain(value):
        return f"{_WRITTEN}{_digest_of(value)}" if _is_written(value, written) else None
    if kind in _ONES:
        return f"{_CHOICE}{_digest_of(value)}"
    if kind in _GROUPS and len(value) <= _ITEMS and all(map(_is_plain, value)):  # type: ignore[arg-type, call-overload]
        items = value if kind in (tuple, list) else sorted(map(repr, value))  # type: ignore[call-overload]
        return f"{_CHOICE}{_digest_of(items)}" if _digest(value) is None else None
    name = _name(value)
    return None if name is None else f"{_NAME}{_digest_of(name)}"


def _is_plain(value: object) -> bool:
    if type(value) is str:
        return len(value) <= _LONGEST and not ("/" in value or os.sep in value)
    if type(value) is slice:
        return all(map(_is_plain, (value.start, value.stop, value.step)))
    return type(value) in (bool, complex) or value is None or _is_number(value)


def _is_written(value: object, written: _Written) -> bool:
    """Return whether it is a text or bytes that is written in the script's code, and does not look like a path."""
    if not isinstance(value, (str, bytes)) or (type(value), value) not in written:
        return False
    return isinstance(value, bytes) or _PATH.match(value) is None


def _name(value: Any) -> str | None:
    """Return what a function, class, cell, operator or type is called, with the plain values that it was given.

    Asks no `isinstance` and no attribute that a class of the user's may compute.
    """
    kind = type(value)
    if issubclass(kind, functools.partial):
        name = _name(value.func)
        named = sorted((key, one) for key, one in value.keywords.items() if _is_plain(one))
        return None if name is None else f"{name}{[*filter(_is_plain, value.args)]}{named}"
    if kind is np.ufunc:
        return f"numpy.{value.__name__}"
    if kind in _NAMED or issubclass(kind, type):
        inside = _inside(value.__code__) if kind is types.FunctionType else ""
        return f"{value.__module__}.{value.__qualname__}{inside}"
    if issubclass(kind, enum.Enum):
        return f"{kind.__qualname__}.{value._name_}"
    if issubclass(kind, (np.dtype, ms.Type)):
        return repr(value)
    return f"{kind.__module__}.{kind.__qualname__}" if issubclass(kind, (nn.Cell, Primitive)) else None


def _inside(code: types.CodeType) -> str:
    """Return what distinguishes a lambda from others in the same function; nothing for a function with a name."""
    if code.co_name != "<lambda>":
        return ""
    return f"{code.co_names}{[one for one in code.co_consts if _is_plain(one)]}"


def _in_cells(cells: Iterable[nn.Cell]) -> Iterator[tuple[str, object]]:
    for cell in cells:
        for name, one in cell.cells_and_names():
            place = f"{name or type(cell).__name__}."
            yield from ((place + key, value) for key, value in beside_bare(one).items())
    yield from _numbers_in_cells(cells)


def _numbers_in_cells(cells: Iterable[nn.Cell]) -> Iterator[tuple[str, object]]:
    """Yield the numbers that `construct` may read, those of all cells of a class as one list.

    Not of a rate that is a cell, which may be given for more epochs; what optimizers have is compared elsewhere.
    """
    found: dict[str, list[object]] = {}  # each begins with 0, since lists of one number are not digested
    names: dict[type, Collection[str]] = {}
    for one in {id(each): each for root in cells for _, each in root.cells_and_names()}.values():
        kind = type(one)
        if kind not in names:
            is_compared = not issubclass(kind, _MAY_CHANGE) and kind.__module__.partition(".")[0] != "ckptkit"
            names[kind] = sorted(read_by_construct(kind)) if is_compared else ()  # no order of hashes
        for name in names[kind]:
            value = own_attributes(one).get(name)
            if _is_number(value):
                found.setdefault(f"{kind.__name__}.{name}", [0]).append(value)
    yield from found.items()


def _further(
    variables: Iterable[tuple[str, object]], left_out: Collection[int], written: _Written
) -> Iterator[tuple[str, object]]:
    """Yield what functions name, and the arrays in objects of the user's, nearest first."""
    waiting = deque((place, one, 0) for place, one in variables)
    seen = {id(one) for _, one, _ in waiting} | {*left_out}
    kept: list[object] = []  # so that no id is used twice
    while waiting and len(seen) < _MOST_SEARCHED:
        place, one, depth = waiting.popleft()
        is_code = isinstance(one, _CODE)
        if depth == _FURTHEST or not (is_code or _may_hold_values(one)):
            continue
        for part, value in itertools.chain(below(one), () if is_code else _numbers_of_class(one)):
            if _is_number(value) or type(value) in _ONES or value is None:
                yield place + part, value
                continue
            if id(value) in seen:
                continue
            seen.add(id(value))
            kept.append(value)
            waiting.append((place + part, value, depth + 1))
            if is_code or isinstance(value, _ARRAYS) or _is_of_arrays(value) or _choice(value, written) is not None:
                yield place + part, value


def _is_of_arrays(value: object) -> bool:
    return type(value) in (list, tuple) and len(value) > 1 and issubclass(type(value[0]), _ARRAYS)  # type: ignore[arg-type, index]


def _numbers_of_class(one: object) -> Iterator[tuple[str, object]]:
    for name, value in members_of(one if isinstance(one, type) else type(one)):
        if not name.startswith("__") and (_is_number(value) or type(value) in _ONES):
            yield f".{name}", value


def _may_hold_values(one: object) -> bool:
    if isinstance(one, type):
        return is_users(one.__module__)
    if type(one) in _PLAIN:
        return not isinstance(one, dict) or len(one) <= _FEW
    return is_of_users(one) and not isinstance(one, (nn.Cell, types.ModuleType))


def differ(one: str, other: str) -> bool:
    """Return whether two digests are of different values; of texts, only the same ones in another order count."""
    if _NOTHING in (one, other) and not all(is_single(each) and not each.startswith(_NAME) for each in (one, other)):
        return False  # such as a function or an array that is made when it is needed first
    texts, _, _ = one.rpartition(_ORDERED)
    return one != other and texts == other.rpartition(_ORDERED)[0]


def _digest(value: object) -> str | None:
    """Return the digest of the beginning of a value; None if it has neither arrays nor several numbers or texts."""
    texts = _texts(value)
    if texts:
        return _ORDERED.join(map(_digest_of, (sorted(texts), texts)))
    hasher = xxhash.xxh3_128()
    try:
        return hasher.hexdigest() if _add(value, hasher) else None
    except (TypeError, ValueError, RuntimeError, MemoryError):  # such as a number with more digits than Python prints
        return None


def _digest_of(value: object) -> str:
    return xxhash.xxh3_128_hexdigest(repr(value).encode())


def _add(value: Any, hasher: xxhash.xxh3_128) -> bool:
    """Add the beginning of a value: of each list a part, and no more lists than that in all."""
    waiting, left = [value], _ITEMS
    while waiting:
        one = waiting.pop()
        kind = type(one)
        if kind is ms.Tensor or kind is np.ndarray:
            if not _add_array(one, hasher):
                return False
            continue
        left -= 1
        if not (issubclass(kind, tuple) or kind is list) or len(one) < 2 or left < 0:
            return False
        items = [*itertools.islice((tuple if issubclass(kind, tuple) else list).__iter__(one), _ITEMS)]
        hasher.update(f"{len(one)}".encode())
        if all(type(each) in _NUMBERS for each in items):
            hasher.update(repr(items).encode())
        else:
            waiting += reversed(items)
    return True


def _texts(value: Any) -> list[str]:
    """Return the texts of a list, or of a table that gives each text its number, such as a vocabulary; or nothing."""
    kind = type(value)
    if kind not in (list, tuple, dict) or not 2 <= len(value) <= _TEXTS:
        return []
    if kind is dict and not all(type(one) is int and one == at for at, one in enumerate(value.values())):
        return []
    return [*value] if all(type(one) is str for one in value) else []


def _add_array(one: Any, hasher: xxhash.xxh3_128) -> bool:
    if type(one) is ms.Tensor and (one.has_init or tensor_bytes(one) > _BYTES):
        return False  # reading a tensor may copy all of it
    array = one.asnumpy() if type(one) is ms.Tensor else one
    if array.dtype.hasobject:
        return False
    hasher.update(f"{array.dtype}{array.shape}".encode())
    # Not `reshape`, which may copy all of a view.
    hasher.update(np.ascontiguousarray(array.flat[: _BYTES // max(1, array.itemsize)]).tobytes())
    return True
