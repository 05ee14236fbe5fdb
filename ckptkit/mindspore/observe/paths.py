"""Says how another process finds a part of a training's Python state: a `Root`, then one `Step` after the other.

Pure values, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_STEP_TEXTS = {
    **dict.fromkeys(("attribute", "closure", "class"), ".{}"),
    **{"item": "[{}]", "key": "[{!r}]", "default": "({})", "inner": "()", "context": ".get()", "part": "{}"},
}


class Root(NamedTuple):
    """Says where a path begins: a ``variable`` of a function, a ``global``, a ``callback``, a ``cell`` or ``given``.

    Attributes:
        kind: One of these, or another text for what the next process cannot reach by it.
        owner: The function, the module or the class name.
        name: Name there.
    """

    kind: str
    owner: str
    name: str

    def __str__(self) -> str:
        if self.kind == "variable":
            return f"{self.owner}: {self.name}"
        if self.kind in ("callback", "cell"):  # not the class of the same name
            return f"{self.name}()"
        if self.kind == "given":
            return f"stateful[{self.name!r}]"
        return f"{self.owner}.{self.name}" if self.kind == "global" and self.owner != "__main__" else self.name


class Step(NamedTuple):
    """Leads from an object to a part of it.

    Attributes:
        kind: ``attribute``, ``item``, ``key``, ``closure``, ``default`` or ``context``; ``class`` and ``inner`` for
            what is not set, ``part`` for what another process cannot reach so.
        key: Its name, index or key; of a ``part``, its text in a path.
    """

    kind: str
    key: Any

    def __str__(self) -> str:
        return _STEP_TEXTS[self.kind].format(self.key)


Chain = tuple[Root, tuple[Step, ...]]


def plain_chain(chain: Chain) -> list[Any]:
    """Return a path as lists, which `chain_of` takes."""
    root, steps = chain
    return [list(root), [list(step) for step in steps]]


def chain_of(place: Sequence[Any]) -> Chain:
    """Return the path of `plain_chain`."""
    return Root(*place[0]), tuple(Step(*step) for step in place[1])


def is_below(path: str, parts: Iterable[str]) -> bool:
    """Return whether a path, as text, is one of others, or leads to a part of one."""
    return any(path == part or path.startswith((f"{part}.", f"{part}[", f"{part}(")) for part in parts)
