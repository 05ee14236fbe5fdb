"""Stores and restores the state of a training's other callbacks.

Guarantees: `EarlyStopping` and `ReduceLROnPlateau` continue where they were, although their own ``on_train_begin``
resets them. Every other callback that keeps something between steps, and anything that their subclasses add, is
named in a warning unless it was given by ``stateful=``. Main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore.train import Callback, EarlyStopping, ReduceLROnPlateau

from ckptkit.core.tensors import leaf_of
from ckptkit.mindspore.parameters.apply import tensor_of

_log = logging.getLogger("ckptkit")

# Public attributes of the two classes; a test compares a resumed run with an uninterrupted run.
_FIELDS: dict[type[Callback], tuple[str, ...]] = {
    EarlyStopping: ("wait", "stopped_epoch", "best"),
    ReduceLROnPlateau: ("wait", "cooldown_counter", "best"),
}


class OtherCallbacks:
    """Stores the state of the callbacks other than `CheckpointCallback`, as a stateful object of the checkpoint.

    A restore has two steps, because the callbacks are known only when training begins, and reset themselves then:
    `load_state_dict` keeps the state, `restore` gives it to the callbacks.
    """

    def __init__(self) -> None:
        self._adapted: dict[str, tuple[Callback, Sequence[str]]] = {}  # by class name, with the attributes to store
        self._loaded: Mapping[str, Any] | None = None

    def bind(self, callbacks: Sequence[Callback]) -> None:
        self._adapted = {}
        for callback in callbacks:
            kind = next((kind for kind in _FIELDS if isinstance(callback, kind)), None)
            if kind is not None:
                nth = sum(name.partition("#")[0] == kind.__name__ for name in self._adapted) + 1
                self._adapted[kind.__name__ if nth == 1 else f"{kind.__name__}#{nth}"] = callback, _FIELDS[kind]

    def stored_attributes(self) -> list[tuple[Callback, Sequence[str]]]:
        """Return the callbacks whose state is stored here, with the names of the attributes that it holds."""
        return [(held, (*fields, "best_weights_param_dict", "best_weights")) for held, fields in self._adapted.values()]

    def early_stop(self) -> str | None:
        """Return which callback ended training for good, or None."""
        for name, (callback, _) in self._adapted.items():
            if isinstance(callback, EarlyStopping) and callback.stopped_epoch > 0:
                return f"{name} stopped it at epoch {callback.stopped_epoch}"
        return None

    def state_dict(self) -> dict[str, Any]:
        states: dict[str, Any] = {}
        for name, (callback, fields) in self._adapted.items():
            states[name] = {field: np.array(getattr(callback, field)) for field in fields}
            best = getattr(callback, "best_weights_param_dict", None)
            if best is not None:
                leaves = [leaf_of(weight, parameter.asnumpy(), role="state") for weight, parameter in best.items()]
                states[name]["best_weights"] = {leaf.name: [leaf.dtype, np.array(leaf.array)] for leaf in leaves}
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded = state

    def restore(self) -> None:
        """Give the callbacks their loaded state; call it after every callback's ``on_train_begin``."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        for name in sorted(loaded.keys() - self._adapted.keys()):
            _log.warning("the checkpoint has state of a callback %s, which this training does not use", name)
        for name, (callback, _) in self._adapted.items():
            if name not in loaded:
                _log.warning("the callback %s is not in the checkpoint and begins afresh", name)
            for field, value in loaded.get(name, {}).items():
                if field == "best_weights":
                    best = {
                        weight: ms.Parameter(tensor_of(bits, dtype), weight) for weight, (dtype, bits) in value.items()
                    }
                    callback.best_weights_param_dict = best
                else:
                    setattr(callback, field, value.item() if value.dtype.kind in "iu" else value)
