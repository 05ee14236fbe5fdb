"""Finds memory of which a compiled step has the first state only, so that a resumed run, which compiles anew, differs.

A graph reads a buffer as it was when the graph was compiled. A graph of a function (`mindspore.jit`,
`mindspore.value_and_grad` in GRAPH mode) also continues with the memory that parameters had then, after
`Parameter.set_data` gave them another one; the graph of a cell follows them. Seen on CPU with MindSpore 2.10.

Guarantees: each kind is told once. What the first micro-step itself replaces is not seen. Main thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mindspore import nn

from ckptkit.core.tensors import Leaf
from ckptkit.core.text import some
from ckptkit.mindspore.parameters.parameters import CellParameters
from ckptkit.mindspore.parameters.roles import optimizers_of
from ckptkit.mindspore.state.switches import mode_in_force


class CompiledMemory:
    """Watches the parameters and buffers of one training.

    Args:
        parameters: Those of the cells.
        cells: The cells. If one of them has an optimizer and what it trains, a graph of that cell trains.
        moved: Returns the names of tensors, also of objects given by name, that have moved since its last call.
    """

    def __init__(self, parameters: CellParameters, cells: Sequence[nn.Cell], moved: Callable[[], set[str]]) -> None:
        self._parameters = parameters
        self._moved = moved
        self._by_function = not any(optimizers_of([one]) and not isinstance(one, nn.Optimizer) for one in cells)
        self._has_begun = False
        self._told_of_buffers = self._told_of_parameters = False

    def first_step_ended(self) -> None:
        """Note where the parameters are, at the first call: the step has been compiled."""
        if not self._has_begun:
            self._has_begun = True
            self._moved()

    def doubts(self, leaves: Sequence[Leaf], *, compiled: bool) -> list[tuple[str, bool]]:
        """Return what a resumed run has otherwise, given ``leaves`` taken just now; each with whether that is certain.

        New memory is not: which parameters a compiled function reads is unknown. An average that the loop sets by
        `Parameter.set_data` is read by none, and a run with it is exact, so it must not end in its middle.

        Args:
            leaves: All leaves of the cells.
            compiled: Whether the loop trains by a compiled function, in PYNATIVE mode, too.
        """
        is_graph = mode_in_force() == "GRAPH"
        found = []
        if is_graph and not self._told_of_buffers and (changed := self._parameters.changed_buffers(leaves)):
            self._told_of_buffers = True
            doubt = (
                f"Training changes the buffers {some(changed)}, but a graph reads a buffer as it was when the graph "
                "was compiled, and a resumed run compiles again. Make them Parameters with requires_grad=False, or "
                "train in PYNATIVE mode"
            )
            found.append((doubt, True))
        if (compiled or (is_graph and self._by_function)) and not self._told_of_parameters and self._has_begun:
            moved = sorted(self._moved())
            if moved:
                self._told_of_parameters = True
                doubt = (
                    f"{some(moved)} got new memory after the first micro-step (set_data or load_param_into_net). A "
                    "compiled function that reads them continues with the old memory, and a resumed run compiles "
                    "again. Use ops.assign(parameter, value) instead"
                )
                found.append((doubt, False))
        return found
