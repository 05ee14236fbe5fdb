"""Encodes and decodes the sections of a MindSpore checkpoint: what it holds besides the parameters.

Guarantees: `decoded` returns what `captured` was given. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from ckptkit.core.contents import Capture, Contents
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import Leaf
from ckptkit.core.tree import decode_tree, encode_tree
from ckptkit.errors import CorruptCheckpointError, StateMismatchError

_SECTIONS = ("rng", "data", "train", "user")
_OBSERVED = "observed"  # a checkpoint without it has nothing to put back
_TRAIN_KEYS = {
    "cell",
    "ended",
    "accumulation",
    "global_step_at_start",
    "first_world",
    "mode",
    "numerics",
    "switches",
    "rates",
    "arrays",
    "shared_memory",
}


def captured(progress: Progress, leaves: list[Leaf], sections: Mapping[str, Any]) -> Capture:
    """Return a capture of ``leaves`` and ``sections``; TypeError if ``sections`` hold a value that cannot be stored."""
    state = {name: encode_tree(section, name, leaves) for name, section in sections.items()}
    return Capture(progress, tuple(leaves), state)


def decoded(contents: Contents) -> dict[str, Any]:
    """Return the sections of a checkpoint."""
    sections = {name: _section(contents, name) for name in _SECTIONS}
    sections[_OBSERVED] = contents.state.get(_OBSERVED)
    try:
        state = {name: decode_tree(section, contents.state_tensors) for name, section in sections.items()}
    except ValueError as error:
        raise CorruptCheckpointError(f"{contents.checkpoint}: {error}") from error
    for unsaid in ("mode", "numerics", "switches", "rates", "arrays", "shared_memory"):
        state["train"].setdefault(unsaid, None)
    # A run that has known only one world may omit it.
    first_world = state["train"].setdefault("first_world", contents.world_size)
    if isinstance(first_world, bool) or not isinstance(first_world, int) or first_world < 1:
        raise CorruptCheckpointError(f"{contents.checkpoint}: the run began with {first_world!r} ranks")
    if state["train"].keys() != _TRAIN_KEYS:
        raise StateMismatchError(
            f"the section train of {contents.checkpoint} has {sorted(state['train'])}, not {sorted(_TRAIN_KEYS)}: it "
            "was made by another version of ckptkit. Install that one, or start under another root"
        )
    return state


def _section(contents: Contents, name: str) -> JsonValue:
    if name not in contents.state:
        raise StateMismatchError(
            f"the checkpoint {contents.checkpoint} has no section {name!r}: it was not made by a StateManager"
        )
    return contents.state[name]
