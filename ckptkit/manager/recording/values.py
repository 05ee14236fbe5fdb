"""Takes the values of a micro-step: numbers, or what a framework has of one element, on a device or not.

Guarantees: `settled` waits for no device; `numbers_of` may, and a device error that surfaces there is raised. Any
thread.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]


def settled(values: Values) -> Values:
    """Return ``values`` with mutable ones read at once, and without those that are not a single number."""
    return {name: _reference(value) for name, value in values.items() if value is not None}


def _reference(value: Any) -> Any:
    if isinstance(value, float | int):
        return float(value)
    if not hasattr(value, "asnumpy"):
        return _number(value)
    # A parameter's value changes in place; a tensor returned by a step does not.
    return _number(value) if _is_parameter(value.__class__) else value if getattr(value, "size", 1) == 1 else None


@functools.cache
def _is_parameter(kind: type) -> bool:
    return any(one.__name__ == "Parameter" for one in kind.__mro__)


def numbers_of(values: Values) -> dict[str, float]:
    """Return the numbers among ``values``; reads what is on a device."""
    found = {name: _number(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, float):
        return value
    if hasattr(value, "asnumpy") and not _has_one_item(value):
        value = value.asnumpy()
    try:
        return float(value.item() if _has_one_item(value) else value)
    except (TypeError, ValueError, OverflowError):
        return None


def _has_one_item(value: Any) -> bool:
    return getattr(value, "size", 1) == 1 and hasattr(value, "item")  # of a tensor, 20 times as fast as `asnumpy`
