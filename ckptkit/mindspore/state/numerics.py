"""Compares what rounds a training and scales its updates, and is no parameter: compute types, settings, schedule cells.

Guarantees: what differs between a restored checkpoint and this process is named with both values, before anything is
changed. A schedule cell of the user's is called on a copy. Not compared: schedules with parameters, which are restored;
a schedule that cannot be called outside of a graph, which is logged once. Main thread only.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mindspore as ms
from mindspore import nn

from ckptkit.mindspore.rng import capture_rng, restore_rng
from ckptkit.mindspore.train.cell import optimizers_of

_log = logging.getLogger("ckptkit")

_TYPES = {"fp16": "Float16", "bf16": "BFloat16", "fp32": "Float32"}  # by the flag that `nn.Cell.to_float` sets
_SETTINGS = ("deterministic", "matmul_allow_hf32", "ascend_config", "gpu_config", "jit_config", "enable_graph_kernel")
_INPUTS = "the types of its inputs"
_SHOWN = 3


class Numerics:
    """Describes the cells of a training, and this process."""

    def __init__(self, cells: Mapping[str, nn.Cell]) -> None:
        # Walked once, as in `switches`.
        self._places = [
            (".".join(filter(None, (name, place))), cell)
            for name, root in cells.items()
            for place, cell in root.cells_and_names()
        ]
        optimizers = {id(cell): cell for cell in optimizers_of([*cells.values()]) if isinstance(cell, nn.Optimizer)}
        scheduled = [(cell, _schedules(cell)) for cell in optimizers.values()]
        self._scheduled = [(optimizer, schedules) for optimizer, schedules in scheduled if schedules]
        self._unknown: set[int] = set()

    def record(self) -> dict[str, Any]:
        steps = [int(optimizer.global_step.asnumpy().reshape(-1)[0]) for optimizer, _ in self._scheduled]
        return {"types": self._types(), "settings": dict(_settings()), "rates": self._rates(steps)}

    def doubt(self, recorded: Mapping[str, Any] | None) -> str | None:
        """Return a warning if this process computes otherwise than the one that `record` described."""
        if recorded is None:
            return None
        then, now = recorded["types"], self._types()
        differences = [
            f"{path} computes in {_type_at(path, now)}, in the saved run in {_type_at(path, then)}"
            for path in sorted(then.keys() | now.keys())
            if _type_at(path, then) != _type_at(path, now)
        ]
        differences += [
            f"{name} is {value or 'not set'}, in the saved run {recorded['settings'][name] or 'not set'}"
            for name, value in _settings()
            if value != recorded["settings"].get(name, value)
        ]
        differences += _differing(recorded["rates"], self._rates([rate["step"] for rate in recorded["rates"]]))
        if not differences:
            return None
        more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        return f"{'; '.join(differences[:_SHOWN])}{more}. Build it as it was, or start under another root"

    def _types(self) -> dict[str, str]:
        """Return the compute type of each cell to which another one was given than to the cell around it."""
        types: dict[str, str] = {}
        for path, cell in self._places:
            kind = _type_of(cell)
            if kind is not None and kind != _type_at(path, types):
                types[path] = kind
        return types

    def _rates(self, steps: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rates that the schedules of each optimizer give for its update at ``steps``, and the one after."""
        if not self._scheduled:
            return []
        rng = capture_rng()
        rates = [
            {"step": step, "values": [[self._rate(schedule, at) for at in (step, step + 1)] for schedule in schedules]}
            for (_, schedules), step in zip(self._scheduled, steps, strict=False)
        ]
        restore_rng(rng)  # a schedule of the user's may draw
        return rates

    def _rate(self, schedule: nn.Cell, step: int) -> float | None:
        if id(schedule) in self._unknown:
            return None
        try:
            unshared = schedule if type(schedule).__module__.startswith("mindspore.") else copy.deepcopy(schedule)
            # Not called as a cell: GRAPH would compile it.
            return float(unshared.construct(ms.Tensor([step], ms.int32)).asnumpy().reshape(-1)[0])
        except Exception as error:  # noqa: BLE001 - the user's code; a save must not fail because of it
            self._unknown.add(id(schedule))
            _log.warning("the rates of %s are not compared at a resume", type(schedule).__name__, exc_info=error)
            return None


def _type_at(path: str, types: Mapping[str, str]) -> str:
    """Return the type in ``types`` of ``path``, or of the nearest cell around it."""
    while path and path not in types:
        path = path.rpartition(".")[0]
    return types.get(path, _INPUTS)


def _type_of(cell: nn.Cell) -> str | None:
    kind = type(cell)
    # `mindspore.rewrite`, which amp uses for its level O1, puts the class of a cell with casts into a module of this
    # name. If that moves, a test of this module fails.
    if kind.__module__.rpartition("_")[0] == kind.__name__:
        return "mixed types"
    flags = cell.get_flags()
    return next((name for flag, name in _TYPES.items() if flags.get(flag)), None)


def _settings() -> Iterator[tuple[str, str]]:
    for name in _SETTINGS:
        try:
            yield name, str(ms.get_context(name) or "")
        except ValueError:  # this MindSpore has no such setting
            continue


def _schedules(optimizer: nn.Optimizer) -> list[nn.Cell]:
    rates = optimizer.learning_rate if optimizer.is_group_lr else [optimizer.learning_rate]
    cells = [rate for rate in rates if isinstance(rate, nn.Cell)]
    return [cell for cell in cells if next(iter(cell.get_parameters()), None) is None]


def _differing(then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for before, after in zip(then, now, strict=False):
        for old, new in zip(before["values"], after["values"], strict=False):
            at = next((at for at in (0, 1) if None not in (old[at], new[at]) and old[at] != new[at]), None)
            if at is not None:
                yield f"the learning rate of update {before['step'] + at} is {new[at]:g}, in the saved run {old[at]:g}"
