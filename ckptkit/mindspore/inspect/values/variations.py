"""Makes other values of a value: one that differs in the last digit, and one that differs in the first.

Guarantees: the value that is given is not changed. Of a container, the last item is another one; of an array, the first
and the last. `UNKNOWN` says that no other value is known, as of an array of more than 64 KiB. Any thread.
"""

from __future__ import annotations

import copy
import itertools
import math
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from ckptkit.mindspore.inspect.attributes import UNKNOWN
from ckptkit.mindspore.inspect.carried_attributes import GENERATORS
from ckptkit.mindspore.inspect.values.copies import CODE, DICTS, LARGE_BYTES, SEQUENCES
from ckptkit.mindspore.inspect.values.digest import digest_of_value


def with_digits(value: Any) -> Any:
    """Return a value of which a change in the last bit shows whether all digits are kept; of a zero, a third."""
    if type(value) is float:
        return value if math.isfinite(value) and abs(value) > 1e-9 else 1 / 3
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f":
        return _array_with(value, lambda one: one if np.isfinite(one) and abs(one) > 1e-4 else one.dtype.type(1 / 3))
    return _with_last(value, with_digits, value)


def changed_a_little(value: Any) -> Any:
    """Return a value that differs in the last bit, or by one; `UNKNOWN` if none is known."""
    kind = type(value)
    found: Any = UNKNOWN
    if kind is float:
        found = math.nextafter(value, math.inf)
    elif isinstance(value, np.ndarray | np.generic):
        found = _array_with(value, lambda one: np.nextafter(one, one.dtype.type(math.inf)))
    elif kind is int:
        found = value + 1
    else:
        found = _with_last(value, changed_a_little)
        found = _another(value) if found is UNKNOWN else found
    return _if_other(found, value)


def changed_much(value: Any) -> Any:
    """Return a value that differs in its first digits; `UNKNOWN` if none is known."""
    kind = type(value)
    found: Any = UNKNOWN
    if kind in (float, int):
        found = value + 1_000 if math.isfinite(value) else kind(0)  # it may be the size of an array
    elif isinstance(value, np.ndarray | np.generic):
        found = _array_with(value, _much_of_array)
    else:
        found = _with_last(value, changed_much)
        found = _another(value) if found is UNKNOWN else found
    return _if_other(found, value)


def _much_of_array(one: Any) -> Any:
    return one * one.dtype.type(3) + one.dtype.type(12345) if np.isfinite(one) else one.dtype.type(0)


def _if_other(found: Any, value: Any) -> Any:
    if found is UNKNOWN or isinstance(value, CODE):
        return found
    return found if digest_of_value(found) != digest_of_value(value) else UNKNOWN


def _array_with(value: Any, changed: Callable[[Any], Any]) -> Any:
    """Return a copy of an array, or a number of NumPy's, whose first and last item are changed."""
    if value.dtype.kind not in "fiub" or value.size == 0 or value.nbytes > LARGE_BYTES:
        return UNKNOWN
    flat = np.array(value).reshape(-1)
    for at in {0, flat.size - 1}:
        one = flat[at]
        flat[at] = changed(one) if flat.dtype.kind == "f" else (not one if flat.dtype.kind == "b" else one ^ 1)
    return flat[0] if isinstance(value, np.generic) else flat.reshape(value.shape)


def _with_last(value: Any, changed: Callable[[Any], Any], otherwise: Any = UNKNOWN) -> Any:
    """Return a container whose last item is ``changed``; ``otherwise`` for any other value."""
    kind = type(value)
    if kind not in (*SEQUENCES, *DICTS) or not value:
        return otherwise
    last = list(value)[-1] if kind in DICTS else len(value) - 1
    item = changed(value[last])
    if item is UNKNOWN or item is value[last]:
        return otherwise
    if kind is tuple:
        return (*value[:-1], item)
    other = copy.copy(value)
    other[last] = item
    return other


def _another(value: Any) -> Any:
    """Return a different value in place of one without digits; `UNKNOWN` if none is known."""
    kind: Any = type(value)
    if kind in GENERATORS:
        return _after_draws(value)
    if kind in (set, frozenset):
        return kind([*value, next(number for number in itertools.count(2) if number not in value)])
    if kind in (str, bool):
        return f"{value}." if kind is str else not value
    if kind in (list, deque, *DICTS) and not value:
        other = copy.copy(value)
        # Not in the order of the keys: some states sort them.
        other.update({"b": 2, "a": 3}) if kind in DICTS else other.extend([2])
        return other
    return len if isinstance(value, CODE) else {tuple: (2,), types.NoneType: 2}.get(kind, UNKNOWN)


def _after_draws(generator: Any) -> Any:
    """Return a copy that has drawn, and that keeps a half of what it drew last for the next call."""
    other = copy.deepcopy(generator)
    other.random()
    for _ in range(2):  # if it kept one before, the first call uses that up
        if isinstance(other, np.random.Generator):
            other.integers(0, 1 << 31, dtype=np.uint32)
            keeps = other.bit_generator.state.get("has_uint32", 1)
        elif isinstance(other, np.random.RandomState):
            other.standard_normal()
            keeps = other.get_state(legacy=False)["has_gauss"]
        else:
            other.gauss(0, 1)
            keeps = other.gauss_next is not None
        if keeps:
            break
    return other
