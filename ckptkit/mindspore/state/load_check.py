"""Gives a user's object its stored state, and checks that the object took it.

Guarantees: an object that is unchanged afterwards, and differs from its stored state, is refused, unless it may take
the state over later: a loader at its next iteration, a callback at the beginning of the training. Any other difference
is reported, except values that also differ between two reads, such as a clock. Main thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mindspore.train import Callback

from ckptkit.errors import ResumeError
from ckptkit.mindspore.inspect.value_digest import digest_of_value
from ckptkit.mindspore.state.compatibility import some
from ckptkit.mindspore.state.holders import Stateful


def give(name: str, one: Stateful, state: Any) -> str | None:
    """Call ``load_state_dict`` and return a description of what was not taken from ``state``, or None.

    Args:
        name: Name under which the object was given.
        one: The object.
        state: State of the object in a checkpoint.

    Raises:
        ResumeError: If nothing was taken.
    """
    takes_later = isinstance(one, (Iterable, Callback))
    given, before = _digests(state), {} if takes_later else _digests(one.state_dict())
    one.load_state_dict(state)
    after, again = _digests(one.state_dict()), _digests(one.state_dict())
    steady = {place for place in given.keys() | after.keys() if after.get(place) == again.get(place)}
    lost = sorted(place for place in steady if after.get(place) != given.get(place))
    if not lost:
        return None
    if not takes_later and all(after.get(place) == before.get(place) for place in steady | before.keys()):
        raise ResumeError(
            f"load_state_dict() of {name} ({type(one).__name__}) took nothing of what it was given: its state_dict() "
            f"is what it was before, and not what is stored ({some(lost)}). Let it take its state over, then start "
            "again: the checkpoint has it"
        )
    return (
        f"After load_state_dict(), state_dict() of {name} ({type(one).__name__}) is not what was stored: {some(lost)}. "
        "If it takes that over later, or is meant to have it as this process made it, all is well"
    )


def _digests(state: Any) -> dict[str, str]:
    """Return digests by place, computed at once, since a state may be the object's own lists."""
    return {place: digest_of_value(one) for place, one in _places(state, "")}


def _places(state: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(state, Mapping):
        items = [*state.items()]
    elif isinstance(state, (list, tuple)):
        items = [*enumerate(state)]
    else:
        items = []
    if not items:
        yield place or "its value", state
    for key, one in items:
        yield from _places(one, f"{place}/{key}" if place else str(key))
