"""The synthetic training in MindSpore: Parameters, computed with NumPy in their own memory.

MindSpore's CPU kernels keep threads spinning on every core, which would leave none to any background save; `training`
measures that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.core.contents import Buffers, Capture, Contents
from ckptkit.core.process_group import ALONE, World
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import Leaf, Lifetime, Role
from ckptkit.errors import StateMismatchError
from ckptkit.mindspore.parameters.parameters import TrackedTensor, synchronize

from .workload import BETA1, BETA2, EPSILON, RATE, Workload

PIECE = 1 << 14  # elements; temporaries of that size stay in the cache


class Trainer(Workload):
    """The live state and its training; a `ckptkit.snapshot.Capturable`.

    Attributes:
        parameters: By name.
        cell: A cell with all of them.
        world: One rank.
    """

    world: World = ALONE

    def boot(self, load: np.ndarray) -> None:
        """Begin with an empty cell."""
        self._load = load
        self.parameters: dict[str, ms.Parameter] = {}
        self._tracked: list[TrackedTensor] = []
        self.cell = nn.Cell()
        ms.set_device("CPU")
        ms.set_context(mode=ms.PYNATIVE_MODE)

    def add(self, name: str, values: np.ndarray) -> None:
        parameter = ms.Parameter(ms.Tensor(values), name=name)
        self.cell.insert_param_to_cell(name.replace(".", "_"), parameter)
        parameter.name = name
        self.parameters[name] = parameter

    def arrays(self) -> Iterator[np.ndarray]:
        return (one.asnumpy().reshape(-1).view(np.uint8) for one in self.parameters.values())

    def compute(self) -> None:
        self._load @ self._load @ self._load @ self._load

    def accumulate(self, names: Sequence[str]) -> None:
        for a, p in self._pieces(names, "ap"):
            np.add(a, np.float32(0.01) * p, out=a)

    def adam(self) -> None:
        for p, m, v, a in self._pieces(self.names, "pmva"):
            m[:] = BETA1 * m + (1 - BETA1) * a
            v[:] = BETA2 * v + (1 - BETA2) * a * a
            np.subtract(p, RATE * m / (np.sqrt(v) + EPSILON), out=p)
            a[:] = 0

    def _pieces(self, names: Sequence[str], kinds: str) -> Iterator[list[np.ndarray]]:
        for name in names:
            whole = [self.parameters[f"{kind}.{name}"].asnumpy().reshape(-1) for kind in kinds]
            for at in range(0, whole[0].size, PIECE):
                yield [one[at : at + PIECE] for one in whole]

    # What follows is the Capturable.

    def guard(self, fence: Callable[[], None]) -> None:
        """Take what has to be called before weights or moments change."""
        self._fence = fence

    def progress(self) -> Progress:
        """Where the training stands."""
        return Progress(
            epoch=0,
            batch=self.batches,
            cycles=self.cycles,
            updates=self.cycles,
            micro_step=self.micro_step,
            accumulation_steps=self.micro_steps,
            batches_delivered=self.batches,
            cycle_first_batch=self.batches - self.micro_step,
        )

    def is_over(self) -> bool:
        """Never: the harness decides how long it trains."""
        return False

    def complete_step(self) -> Progress:
        """Where the training stands; each micro-step that it counts is complete."""
        return self.progress()

    def capture(self) -> Capture:
        """Live references to everything; accumulators in mid-cycle only."""
        progress = self.progress()
        return Capture(progress, tuple(self.leaves(at_boundary=progress.at_boundary)), {})

    def leaves(self, *, at_boundary: bool) -> list[Leaf]:
        """As a `ckptkit.StateManager` takes them."""
        if not self._tracked:
            self._tracked = [_tracked(name, parameter) for name, parameter in self.parameters.items()]
        chosen = [one for one in self._tracked if not (at_boundary and one.name[0] == "a")]
        synchronize([one.tensor for one in chosen])
        return [one.leaf() for one in chosen]

    def mark_cycle_start(self) -> Progress:
        """Never called: ``mid_cycle`` is "exact"."""
        raise NotImplementedError

    def capture_cycle_start(self) -> Capture:
        """As `mark_cycle_start`."""
        raise NotImplementedError

    def begin(self, root: str) -> None:
        """Any state may begin."""

    def apply(self, contents: Contents) -> None:
        """Take over ``contents``.

        Raises:
            StateMismatchError: If other tensors are in it.
        """
        stored = {name for name in self.parameters if name[0] != "a" or not contents.progress.at_boundary}
        found = contents.entries.keys()
        if stored != found:
            raise StateMismatchError(f"{contents.checkpoint} holds {len(found)} tensors, this training {len(stored)}")
        live = {leaf.name: leaf.array for leaf in self.leaves(at_boundary=False)}
        contents.read_into(Buffers({name: live[name].reshape(-1).view(np.uint8).data for name in stored}))
        for name in live.keys() - stored:
            live[name][...] = 0
        progress = contents.progress
        self.micro_step, self.cycles, self.batches = progress.micro_step, progress.cycles, progress.batches_delivered


def _tracked(name: str, parameter: ms.Parameter) -> TrackedTensor:
    roles: dict[str, Role] = {"p": "weights", "a": "accumulators", "m": "optimizer", "v": "optimizer"}

    def lifetime_of(size_bytes: int) -> Lifetime:
        return "micro" if name[0] == "a" or size_bytes < 64 << 10 else "cycle"

    return TrackedTensor(name, parameter, roles[name[0]], lifetime_of, deferred=False)
