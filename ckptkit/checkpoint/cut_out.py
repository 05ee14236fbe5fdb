"""Memory for whole leaves of which only parts are wanted, one leaf at a time.

Guarantees: a leaf's memory is taken when it is asked for, and let go once its parts were cut out. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ckptkit.core.contents import TensorInfo, WantedPart
from ckptkit.core.tensors import Array, bytes_of


class CutOut(Mapping[str, memoryview]):
    """Targets for `ckptkit.core.contents.Source.read_into`.

    Args:
        infos: What the leaves are, by name.
        wanted: Parts of them.
        done: Called with a leaf's name for each part that was cut out.
    """

    def __init__(
        self, infos: Mapping[str, TensorInfo], wanted: Sequence[WantedPart], done: Callable[[str], None] | None
    ) -> None:
        self._infos = infos
        self._wanted = wanted
        self._done = done
        self._whole: dict[str, Array] = {}

    def __getitem__(self, name: str) -> memoryview:
        whole = self._whole[name] = self._infos[name].empty()
        return bytes_of(whole).data

    def __contains__(self, name: object) -> bool:
        return name in self._infos  # Mapping's own would take the memory

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def filled(self, name: str) -> None:
        """All bytes of ``name`` are there."""
        whole = self._whole.pop(name)
        for part in self._wanted:
            if part.name != name:
                continue
            corner = zip(part.box.offsets, part.shape, strict=True)
            cut = whole[tuple(slice(at, at + size) for at, size in corner)]
            part.memory[:] = bytes_of(np.ascontiguousarray(cut)).data
            if self._done is not None:
                self._done(name)
