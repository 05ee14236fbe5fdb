"""What goes into a checkpoint and what comes out of one, before and after it is bytes.

Pure values, any thread; but the arrays of a `Capture` may be live memory, which is good only between two
micro-steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from ckptkit.progress import Progress
from ckptkit.tensors import Array, Leaf


@dataclass(frozen=True)
class Capture:
    """References to the whole state at one moment; valid only until the next micro-step.

    Attributes:
        progress: Where the run stands.
        leaves: Every tensor; their arrays may be live memory.
        state: Everything else, by section, encoded by `ckptkit.tree`.
    """

    progress: Progress
    leaves: tuple[Leaf, ...]
    state: Mapping[str, JsonValue]


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds, read and verified.

    Attributes:
        checkpoint: Its name.
        progress: Where the run stood.
        tensors: Bits of every tensor by name, in the NumPy dtypes of `ckptkit.tensors.DTYPES`.
        dtypes: Name in `ckptkit.tensors.DTYPES` by tensor name, since BF16 and U16 look alike in NumPy.
        roles: Role by tensor name.
        state: As in `Capture`.
    """

    checkpoint: str
    progress: Progress
    tensors: Mapping[str, Array]
    dtypes: Mapping[str, str]
    roles: Mapping[str, str]
    state: Mapping[str, JsonValue]
