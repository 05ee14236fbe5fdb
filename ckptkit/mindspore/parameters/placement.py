"""Asks the user's `Ranks.placement` for each parameter and checks the answers. Pure functions, any thread."""

from __future__ import annotations

from collections.abc import Mapping

import mindspore as ms

from ckptkit.core.placement import Box, Placement, PlacementByName

_WORDS = ("replicated", "per_rank")


def placed_by_hand(parameters: Mapping[str, ms.Parameter], placement: PlacementByName | None) -> dict[str, Placement]:
    """Return the placements that ``placement`` gives, by the name of the parameter; None leaves one out.

    Raises:
        TypeError: If it gives something else than a placement.
        ValueError: If a box does not contain the parameter.
    """
    if placement is None:
        return {}
    asked = {name: placement(name) for name in parameters}
    placed = {name: one for name, one in asked.items() if one is not None}
    for name, one in placed.items():
        _check_placement(name, tuple(parameters[name].shape), one)
    return placed


def _check_placement(name: str, shape: tuple[int, ...], placement: object) -> None:
    if not isinstance(placement, Box):
        if placement not in _WORDS:
            raise TypeError(
                f"Ranks(placement=...) gives {placement!r} for {name}: it takes {', '.join(map(repr, _WORDS))} or a Box"
            )
        return
    fits = len(shape) == len(placement.offsets) and all(
        at + extent <= whole for at, extent, whole in zip(placement.offsets, shape, placement.global_shape, strict=True)
    )
    if not fits:
        raise ValueError(f"Ranks(placement=...) gives {placement} for {name}, whose shape {shape} does not lie inside")
