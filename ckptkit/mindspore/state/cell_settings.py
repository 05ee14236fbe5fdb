"""Stores and restores what a loop switches in its cells, and compares what rounds a training and is no parameter.

Guarantees of `Switches`: a resumed training has the ``requires_grad``, modes of cells and options of parameter groups
of the interrupted one at the save, whatever the script sets before its loop. A compiled graph keeps the modes that it
was compiled with, so in GRAPH, and where the step of a loop is compiled, the modes of the first micro-step are stored,
and a resumed process that compiled another graph is refused. Of a network that trained and is in evaluation mode at the
save, the modes of its last micro-step are stored: the loop is about to set them again. If it does not, that is logged
at its next micro-step.

Guarantees of `Numerics`: where compute types, settings of the process or schedule cells differ from those of a restored
checkpoint, both values are named before anything is changed. A schedule cell of the user's is called on a copy. Not
compared: schedules with parameters, which are restored; a schedule that cannot be called outside of a graph, which is
logged once. Main thread only.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import mindspore as ms
import xxhash
from mindspore import nn

from ckptkit.core.text import some
from ckptkit.errors import ResumeError
from ckptkit.mindspore.parameters.apply import mode_in_force
from ckptkit.mindspore.rng import capture_rng, restore_rng
from ckptkit.mindspore.train.cell import optimizers_of

_log = logging.getLogger("ckptkit")
_ALL, _UNKNOWN = "*", "?"  # in place of the names of a network's cells
_requires_grad = operator.attrgetter("requires_grad")
_training = operator.attrgetter("training")
_TYPES = {"fp16": "Float16", "bf16": "BFloat16", "fp32": "Float32"}  # by the flag that `nn.Cell.to_float` sets
_SETTINGS = ("deterministic", "matmul_allow_hf32", "ascend_config", "gpu_config", "jit_config", "enable_graph_kernel")
_DEVICE = {"ascend_config": "Ascend", "gpu_config": "GPU"}  # asked elsewhere, MindSpore warns, and says nothing
_INPUTS = "the types of its inputs"
_SHOWN = 3


class _Network:
    def __init__(self, network: nn.Cell, place: int) -> None:
        # Walked once: walking takes many milliseconds, and every save needs it.
        named = list(network.cells_and_names())
        self._prefix = f"{place}:" if place else ""
        self.names, self._cells = [name for name, _ in named], [cell for _, cell in named]
        self.kind = type(network).__name__
        self._noted: tuple[bool, ...] | None = None  # in the last micro-step
        self._is_taken_for_training = False  # it evaluated at a save, and trained in the micro-step before that

    def modes(self) -> tuple[bool, ...]:
        return tuple(map(_training, self._cells))

    def note(self) -> bool:
        """Note the modes of a micro-step; return whether those of the last save were taken for others."""
        self._noted = tuple(map(_training, self._cells))
        was_taken, self._is_taken_for_training = self._is_taken_for_training, False
        return was_taken and not self._noted[0]

    def forget(self) -> None:
        self._noted = None

    def evaluating(self, *, by_model: bool = False, takes: bool = False) -> list[str]:
        """Return the names of the cells that evaluate, `_ALL` for the whole network, `_UNKNOWN` for what is not known.

        Of a network that trained in the last micro-step, and does not now, those of then, which the loop is about to
        set again; if it ``takes`` them so, `note` tells whether it did.
        """
        modes = self.modes()
        turned = self._noted is not None and self._noted[0] and not modes[0]
        self._is_taken_for_training = self._is_taken_for_training or (takes and turned)
        if self._noted is not None and (by_model or turned):
            modes = self._noted
        if self._noted is None and not modes[0]:
            return [f"{self._prefix}{_UNKNOWN}"]
        if not any(modes):
            return [f"{self._prefix}{_ALL}"]
        return [f"{self._prefix}{name}" for name, trains in zip(self.names, modes, strict=True) if not trains]

    def put(self, evaluating: Collection[str]) -> list[str]:
        """Give the cells the modes that `evaluating` returned; return the names of those that had others."""
        if f"{self._prefix}{_UNKNOWN}" in evaluating:
            return []
        trained, changed = self._cells[0].training, []
        for name, cell in zip(self.names, self._cells, strict=True):
            trains = f"{self._prefix}{_ALL}" not in evaluating and f"{self._prefix}{name}" not in evaluating
            if cell.training != trains:
                cell.add_flags(training=trains)
                # A network that evaluates before its loop may just not have been told to train yet.
                changed += [f"{self._prefix}{name or type(cell).__name__}"] if trained else []
        return changed


class Switches:
    def __init__(self, cells: Sequence[nn.Cell], parameters: Collection[ms.Parameter], name: str = "") -> None:
        networks = (getattr(cell, "network", cell) for cell in cells)
        are_cells = (network for network in networks if isinstance(network, nn.Cell))
        self._networks = [_Network(network, place) for place, network in enumerate(are_cells)]
        self._parameters = {parameter.name: parameter for parameter in parameters}
        # `Parameter.requires_grad` reads param_info; reading it directly takes a third of the time.
        self._infos = [parameter.param_info for parameter in self._parameters.values()]
        self._groups = [group for optimizer in optimizers_of(cells) for group in getattr(optimizer, "param_groups", ())]
        self._prefix = f"{name}/" if name else ""
        self._restored: Mapping[str, Any] | None = None
        self.begun_at: int | None = None  # batches, until the modes of the first micro-step after them are noted
        self._compiled: list[str] | None = None
        self.staying: list[_Network] = []  # their modes at a save were taken for others, and have not changed
        self._reported = False
        self._begun: str | None = None

    def note(self) -> None:
        """Note the modes of the micro-step that ended or begins, where no graph keeps them."""
        self.staying = [*filter(_Network.note, self._networks)]

    def end_step(self) -> None:
        """Warn if a network trains in evaluation mode that a save took for one that will train."""
        stay = [network.kind for network in self.staying if not network.modes()[0]]
        self.staying = []
        if stay and not self._reported:
            self._reported = True
            _log.warning(
                "%s was in evaluation mode at a save, and still is in the micro-step after it. A run that resumes from "
                "that checkpoint trains in training mode, since most loops set it again. Set the mode for the next "
                "micro-step before manager.step()",
                ", ".join(stay),
            )

    def record(self, *, by_model: bool = False, compiled: bool = False) -> dict[str, Any]:
        still = [*itertools.compress(self._parameters, map(operator.not_, map(_requires_grad, self._infos)))]
        graph = compiled or mode_in_force() == "GRAPH"
        return {
            "without_grad": still,
            "evaluating": self._compiled if graph else self._evaluating(by_model=by_model, takes=not by_model),
            "groups": [] if graph else [_options_of(group) for group in self._groups],  # a graph keeps the first ones
            "begun": self._begun,
        }

    def load(self, recorded: Mapping[str, Any] | None, delivered: int) -> None:
        """Continue from what `record` returned, or None if nothing was stored, after ``delivered`` batches."""
        self._restored = recorded
        self.begun_at = delivered
        self._compiled = recorded["evaluating"] if recorded is not None else None
        for network in self._networks:
            network.forget()
        begun = self._digest()
        self._begun = begun if recorded is None else recorded.get("begun")
        self.put_back(tell=begun != self._begun)

    def put_back(self, *, tell: bool = True, by_model: bool = False) -> None:
        """Undo what the script has set since `load`; does nothing after `trained`."""
        if self._restored is None:
            return
        still = set(self._restored["without_grad"])
        changed = []
        for name, parameter in self._parameters.items():
            if parameter.requires_grad == (name in still):
                parameter.requires_grad = name not in still
                changed.append(f"requires_grad of {self._prefix}{name}")
        evaluating = self._restored["evaluating"]
        modes = [] if evaluating is None else sorted(name for net in self._networks for name in net.put(evaluating))
        if not by_model:
            changed += [f"set_train of {self._prefix}{name}" for name in modes]
        for place, (group, options) in enumerate(zip(self._groups, self._restored.get("groups", []), strict=False)):
            now = _options_of(group)
            other = (name for name in now.keys() & options.keys() if repr(now[name]) != repr(options[name]))  # NaN, too
            for name in sorted(other):
                group[name] = tuple(options[name]) if isinstance(group[name], tuple) else options[name]
                changed.append(f"{name} of parameter group {self._prefix}{place}")
        if changed and tell:
            warn_of_other_values(changed)

    def trained(self) -> None:
        self._restored = None

    def check_compiled(self, delivered: int, *, compiled: bool = False) -> None:
        """Note the modes with which the first micro-step of this process was compiled; ``compiled`` if the loop is."""
        if self.begun_at is None or delivered == self.begun_at:
            return
        self.begun_at = None
        now = self._evaluating() if compiled or mode_in_force() == "GRAPH" else None
        if self._compiled is None or now is None:
            self._compiled = now
        elif now != self._compiled:
            switched = sorted(f"{self._prefix}{name}" for name in set(now) ^ set(self._compiled))
            raise ResumeError(
                f"set_train of {some(switched)} was switched before the first micro-step after the restore. Where the "
                "step is compiled, the interrupted training continued with the graph that it had compiled before, so "
                "this graph is different. Switch it before the training begins, or train without a graph; start under "
                "another root"
            )

    def _evaluating(self, *, by_model: bool = False, takes: bool = False) -> list[str]:
        return [name for net in self._networks for name in net.evaluating(by_model=by_model, takes=takes)]

    def _digest(self) -> str:
        without, modes = [*map(_requires_grad, self._infos)], [network.modes() for network in self._networks]
        return xxhash.xxh3_128_hexdigest(repr((without, modes, [*map(_options_of, self._groups)])).encode())


def warn_of_other_values(names: Sequence[str]) -> None:
    _log.warning(
        "%s: restored to the value at the save, which is not what the script set before its loop. To continue with "
        "another one, set it within the loop, or start under another root",
        some(names),
    )


def _options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers, texts and pairs of numbers in a parameter group of `mindspore.experimental.optim`.

    Its learning rate is a parameter, which the checkpoint has as such.
    """
    options = {}
    for name, value in group.items():
        items = value if type(value) in (list, tuple) else [value]
        if (items and all(type(item) in (bool, int, float) for item in items)) or type(value) in (str, type(None)):
            options[name] = list(value) if isinstance(value, tuple) else value
    return options


class Numerics:
    def __init__(self, cells: Mapping[str, nn.Cell]) -> None:
        # Walked once, as in `_Network`.
        self._places = [
            (".".join(filter(None, (name, place))), cell)
            for name, root in cells.items()
            for place, cell in root.cells_and_names()
        ]
        optimizers = {id(cell): cell for cell in optimizers_of([*cells.values()]) if isinstance(cell, nn.Optimizer)}
        self._scheduled = []
        for optimizer in optimizers.values():
            rates = optimizer.learning_rate if optimizer.is_group_lr else [optimizer.learning_rate]
            cells_of_rates = [rate for rate in rates if isinstance(rate, nn.Cell)]
            if schedules := [cell for cell in cells_of_rates if next(iter(cell.get_parameters()), None) is None]:
                self._scheduled.append((optimizer, schedules))
        self._unknown: set[int] = set()

    def record(self) -> dict[str, Any]:
        steps = [int(optimizer.global_step.asnumpy().reshape(-1)[0]) for optimizer, _ in self._scheduled]
        return {"types": self._types(), "settings": _settings(), "rates": self._rates(steps)}

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
            for name, value in _settings().items()
            if value != recorded["settings"].get(name, value)
        ]
        rates = self._rates([rate["step"] for rate in recorded["rates"]])
        for before, after in zip(recorded["rates"], rates, strict=False):
            for old, new in zip(before["values"], after["values"], strict=False):
                at = next((at for at in (0, 1) if None not in (old[at], new[at]) and old[at] != new[at]), None)
                if at is not None:
                    update = f"the learning rate of update {before['step'] + at}"
                    differences.append(f"{update} is {new[at]:g}, in the saved run {old[at]:g}")
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


def _settings() -> dict[str, str]:
    """Return the settings of this process that round; empty for one that is not set, or of another device."""
    device, settings = ms.get_context("device_target"), {}
    for name in _SETTINGS:
        with contextlib.suppress(ValueError):  # this MindSpore has no such setting
            settings[name] = str(ms.get_context(name) or "") if _DEVICE.get(name, device) == device else ""
    return settings
