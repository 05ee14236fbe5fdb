"""Gives attributes of an object other values for a while, by `Replaced`. Main thread only."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class Replaced:
    """Attributes of an object that have other values until `undo`."""

    def __init__(self, one: Any, **values: Any) -> None:
        self._one = one
        self._before = {name: vars(one).get(name, _MISSING) for name in values}
        for name, value in values.items():
            setattr(one, name, value)

    def undo(self) -> None:
        """Give the object its own values back; does nothing the second time."""
        before, self._before = self._before, {}
        for name, value in before.items():
            if value is _MISSING:
                delattr(self._one, name)
            else:
                setattr(self._one, name, value)
