"""Stores and restores what a loop switches while it trains: ``requires_grad``, and cells in evaluation mode.

Guarantees: a resumed training has the switches of the interrupted one at the save, whatever the script sets before its
loop. A compiled graph keeps the modes that it was compiled with, so in GRAPH the modes of the first micro-step are
stored, and a resumed process that compiled another graph is refused. Modes are stored of networks that train as a
whole: after a save during evaluation, the loop sets them anyway. Main thread only.
"""

from __future__ import annotations

import itertools
import logging
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import mindspore as ms
from mindspore import nn

from ckptkit.errors import ResumeError
from ckptkit.mindspore.state.compatibility import some

_log = logging.getLogger("ckptkit")

_requires_grad = operator.attrgetter("requires_grad")
_training = operator.attrgetter("training")


def mode_in_force() -> str:
    """Return ``"GRAPH"`` or ``"PYNATIVE"``."""
    return "GRAPH" if ms.get_context("mode") == ms.GRAPH_MODE else "PYNATIVE"


class Switches:
    """Stores the switches of one training and restores them.

    Args:
        cells: Cells of the training.
        parameters: Parameters of its networks.
        name: Name under which the cells were given, for messages.
    """

    def __init__(self, cells: Sequence[nn.Cell], parameters: Collection[ms.Parameter], name: str = "") -> None:
        networks = (getattr(one, "network", one) for one in cells)
        # Walked once: walking takes many milliseconds, and every save needs it.
        self._networks = [list(one.cells_and_names()) for one in networks if isinstance(one, nn.Cell)]
        self._cells = [[cell for _, cell in network] for network in self._networks]
        self._parameters = {one.name: one for one in parameters}
        # `Parameter.requires_grad` reads param_info; reading it directly takes a third of the time.
        self._infos = [one.param_info for one in self._parameters.values()]
        self._prefix = f"{name}/" if name else ""
        self._restored: Mapping[str, Any] | None = None
        self._begun_at: int | None = None
        self._compiled: list[str] | None = None

    def record(self) -> dict[str, Any]:
        """Return what a checkpoint stores."""
        still = [*itertools.compress(self._parameters, map(operator.not_, map(_requires_grad, self._infos)))]
        graph = mode_in_force() == "GRAPH"
        return {"without_grad": still, "evaluating": self._compiled if graph else self._evaluating()}

    def load(self, recorded: Mapping[str, Any] | None, delivered: int) -> None:
        """Continue from what `record` returned, or None if nothing was stored, after ``delivered`` batches."""
        self._restored = recorded
        self._begun_at = delivered
        self._compiled = recorded["evaluating"] if recorded is not None else None
        self.put_back()

    def put_back(self) -> None:
        """Undo what the script has set since `load`; does nothing after `trained`."""
        if self._restored is None:
            return
        changed = self._put_gradients(self._restored["without_grad"]) + self._put_modes(self._restored["evaluating"])
        if changed:
            _log.warning(
                "%s: restored to the value at the save, which is not what the script set before its loop. To "
                "continue with another setting, switch it within the loop, or start under another root",
                some(changed),
            )

    def trained(self) -> None:
        """Leave switching to the loop from now on."""
        self._restored = None

    def look(self, delivered: int) -> None:
        """Note the modes with which the first micro-step of this process was compiled.

        Raises:
            ResumeError: If the graph of the interrupted training was compiled with other modes.
        """
        if self._begun_at is None or delivered == self._begun_at:
            return
        self._begun_at = None
        now = self._evaluating() if mode_in_force() == "GRAPH" else None
        if self._compiled is None or now is None:
            self._compiled = now
        elif now != self._compiled:
            switched = sorted(f"{self._prefix}{name}" for name in set(now) ^ set(self._compiled))
            raise ResumeError(
                f"set_train of {some(switched)} was switched before the first micro-step after the restore. In GRAPH "
                "mode, the interrupted training continued with the graph that it had compiled before, so this graph "
                "is different. Switch it before the training begins, or train in PYNATIVE_MODE; start under another "
                "root"
            )

    def _put_gradients(self, without: Collection[str]) -> list[str]:
        still = set(without)
        changed = [name for name, one in self._parameters.items() if one.requires_grad == (name in still)]
        for name in changed:
            self._parameters[name].requires_grad = name not in still
        return [f"requires_grad of {self._prefix}{name}" for name in changed]

    def _put_modes(self, evaluating: Collection[str] | None) -> list[str]:
        now = self._evaluating()
        if now is None or evaluating is None:
            return []
        changed = set(now) ^ set(evaluating)
        for name, cell in self._named():
            if name in changed:
                cell.add_flags(training=name in now)
        return [f"set_train of {self._prefix}{name}" for name in sorted(changed)]

    def _evaluating(self) -> list[str] | None:
        """Return the names of cells that evaluate while their networks train, or None if no network trains."""
        if not any(cells[0].training for cells in self._cells):
            return None
        if all(all(map(_training, cells)) for cells in self._cells):
            return []
        return [name for name, cell in self._named() if not cell.training]

    def _named(self) -> Iterator[tuple[str, nn.Cell]]:
        for place, network in enumerate(self._networks):
            if network[0][1].training:
                for name, cell in network:
                    yield f"{place}:{name}" if place else name, cell
