"""Digests a training's state after a micro-step, by name, for ``ckptkit doctor``.

Guarantees: observing changes nothing, advances no generator and calls no user code, but ``state_dict()`` of objects
given by name that take more than plain attributes, or whose code does not tell which. What else training reaches is
walked as for what checkpoints store, which may miss some. Main thread only, between two micro-steps.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import nn

from ckptkit.core.tensors import DTYPES
from ckptkit.format.versions import versions
from ckptkit.manager.hooks import Suspect
from ckptkit.mindspore.parameters.apply import mode_in_force
from ckptkit.mindspore.rng import capture_rng
from ckptkit.mindspore.state.digest import digest_of_value, has_arrays, is_plain
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks
from ckptkit.mindspore.state.sources import Sources
from ckptkit.mindspore.state.stateful_objects import (
    GeneratorHolder,
    ParameterHolder,
    state_and_draws,
    state_of,
)
from ckptkit.mindspore.train.call_hooks import replace_call
from ckptkit.mindspore.versions import device_name

if TYPE_CHECKING:
    from ckptkit.mindspore.state.findings import Examination
    from ckptkit.mindspore.state.manager import StateManager


class StateObserver:
    """Observes a `StateManager`.

    In one's own loop, which does not report the train cell's inputs and outputs, its calls are watched from now on.
    """

    def __init__(self, state: StateManager, sources: Sources, examination: Examination) -> None:
        self._state = state
        self._sources = sources
        self._examination = examination
        examination.compare()
        self._inputs: dict[str, Any] | None = None  # of the train cell's last call
        self._outputs: Any = None
        # A cell without an optimizer is the network of a functional loop; a graph may call it.
        if not sources.by_model() and hasattr(state.cell, "optimizer"):
            kind = type(state.cell)

            def call(cell: nn.Cell, *inputs: Any, **named: Any) -> Any:
                outputs = kind.__call__(cell, *inputs, **named)
                self._inputs = {**{str(index): value for index, value in enumerate(inputs)}, **named}
                self._outputs = outputs
                return outputs

            replace_call(state.cell, call)

    def observe(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return digests by name of what must be equal, and texts by path of what else training reaches."""
        if self._sources.ended is None:
            self._sources.refuse_detached()
        digests = {name: _number(value) or digest_of_value(value) for name, value in self._seen()}
        for leaf in self._sources.parameters.leaves(at_boundary=False):
            digests[f"{leaf.role}/{leaf.name}"] = digest_of_value(leaf.array)
        for name, value in asdict(self._state.progress()).items():
            digests[f"counters/{name}"] = str(value)
        digests.update((name, digest_of_value(value)) for name, value in self._named())
        rng = capture_rng()
        rng |= {f"mindspore.{part}": value for part, value in rng.pop("mindspore").items()}
        digests.update((f"rng/{name}", digest_of_value(value)) for name, value in rng.items())
        return digests, self._examination.reached(sys._getframe(1))

    def environment(self) -> dict[str, str]:
        """Return what computes: the mode, the device, and versions."""
        system = {"system": f"{platform.system()} {platform.machine()}", "Python": platform.python_version()}
        return {"mode": mode_in_force(), "device": device_name(), **system, **versions()}

    def began(self) -> dict[str, str]:
        """Return the texts by path as the first batch was handed out; empty before that."""
        return self._examination.began

    def unstored(self) -> dict[str, str]:
        """Return what training changes and cannot be stored, with what it is."""
        return dict(self._examination.observer.unstored)

    def drawing_in_state_dict(self) -> list[str]:
        """Return the names of stateful objects whose ``state_dict()`` draws random numbers; calls each once."""
        objects = {name: held for name, held in self._sources.stateful.items() if not isinstance(held, OtherCallbacks)}
        return [f"{name} ({type(held).__name__})" for name, held in objects.items() if state_and_draws(held)[1]]

    def suspects(self) -> list[Suspect]:
        """Return what is known, without running, to keep the job from being exact."""
        return [Suspect(**asdict(finding)) for finding in self._state.findings()]

    def replicated(self) -> list[str]:
        """Return the names of the digests that must be the same in every rank."""
        leaves = self._sources.parameters.leaves(at_boundary=False)
        return [f"{leaf.role}/{leaf.name}" for leaf in leaves if leaf.spec.placement == "replicated"]

    def _seen(self) -> Iterator[tuple[str, Any]]:
        batch = self._inputs if self._state.last_batch is None else self._state.last_batch
        outputs = self._outputs if self._state.last_outputs is None else self._state.last_outputs
        if batch is not None:
            columns = _columns(batch, getattr(self._state.position, "dataset", None))
            yield from ((f"batch/{name}", value) for name, value in columns.items() if is_plain(value))
            # What a loop makes of the batch, such as the rows of its numbers.
            inputs = {} if batch is self._inputs else self._inputs or {}
            given = {id(value) for value in columns.values()}
            made = {name: value for name, value in inputs.items() if id(value) not in given and is_plain(value)}
            yield from ((f"input/{name}", value) for name, value in made.items())
        if outputs is not None and is_plain(outputs):
            yield "loss", outputs

    def _named(self) -> Iterator[tuple[str, Any]]:
        """Yield what checkpoints hold of objects given by name: of those with a ``state_dict()``, what that tells.

        What it tells without an array may be a mark of the process, such as a time, and is of a kind of its own.
        Parameters never are such a mark, and are of another kind.
        """
        for name, stateful in self._sources.stateful.items():
            if isinstance(stateful, ParameterHolder):
                places = ParameterHolder.state_dict(stateful)
                parameters = {place: packed for place, packed in places.items() if packed[0] in DTYPES}
                yield from ((f"parameters/{name}/{place}", packed) for place, packed in parameters.items())
                # A train cell's state has counters and switches beside its parameters.
                counts = {} if type(stateful) is ParameterHolder else {**stateful.state_dict(), "parameters": None}
                if rest := {place: packed for place, packed in places.items() if place not in parameters} | counts:
                    yield f"named/{name}", rest
            elif isinstance(stateful, GeneratorHolder):
                yield f"named/{name}", stateful.state_dict()
            elif not isinstance(stateful, OtherCallbacks):
                state = state_of(stateful)
                for part, value in (state if isinstance(state, Mapping) else {"state": state}).items():
                    if is_plain(value):
                        yield f"{'named' if has_arrays(value) else 'told'}/{name}.{part}", value


def _number(value: Any) -> str:
    """Return a float of one element, such as a loss, as a text that tells each bit; empty for anything else."""
    if isinstance(value, ms.Tensor) and value.size == 1 and value.dtype in (ms.float16, ms.float32, ms.float64):
        return repr(float(value.asnumpy().reshape(())))
    return repr(value) if isinstance(value, float) else ""


def _columns(batch: Any, dataset: Any) -> dict[str, Any]:
    if isinstance(batch, Mapping):
        return {str(name): value for name, value in batch.items()}
    values = list(batch) if isinstance(batch, Sequence) else [batch]
    names = dataset.get_col_names() if hasattr(dataset, "get_col_names") else []
    return dict(zip(names if len(names) == len(values) else map(str, range(len(values))), values, strict=True))
