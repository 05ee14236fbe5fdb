"""What a checkpoint of a MindSpore training holds beside the parameters: its sections, and how they are stored.

Guarantees: what `decoded` returns is what `captured` was given. Pure functions, any thread.
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
_TRAIN_KEYS = {"cell", "ended", "accumulation", "global_step_at_start", "first_world", "mode", "switches", "rates"}


def captured(progress: Progress, leaves: list[Leaf], sections: Mapping[str, Any]) -> Capture:
    """A capture of ``leaves`` and ``sections``; TypeError if something in these has no place in a checkpoint."""
    state = {name: encode_tree(section, name, leaves) for name, section in sections.items()}
    return Capture(progress, tuple(leaves), state)


def decoded(contents: Contents) -> dict[str, Any]:
    """The sections of a checkpoint.

    Raises:
        StateMismatchError: If it has others: it is not of a MindSpore training, or of another version's.
        CorruptCheckpointError: If one makes no sense.
    """
    sections = {name: _section(contents, name) for name in _SECTIONS}
    try:
        state = {name: decode_tree(section, contents.state_tensors) for name, section in sections.items()}
    except ValueError as error:
        raise CorruptCheckpointError(f"{contents.checkpoint}: {error}") from error
    for unsaid in ("mode", "switches", "rates"):
        state["train"].setdefault(unsaid, None)
    # A run that knows one world only need not have said so.
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
