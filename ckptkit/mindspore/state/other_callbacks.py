"""Stores and restores the state of a training's other callbacks.

Guarantees: `EarlyStopping` and `ReduceLROnPlateau` continue where they were, although their own ``on_train_begin``
resets them. Every other callback that keeps something between steps, and anything that their subclasses add, is
named in a warning unless it was given by ``stateful=``. Main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import PurePath
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.train import Callback, EarlyStopping, History, ReduceLROnPlateau

from ckptkit.core.tensors import leaf_of
from ckptkit.core.text import some
from ckptkit.mindspore.inspect.attribute_uses import changed_in_place, named_by, only_shown
from ckptkit.mindspore.inspect.loops.objects import Stored
from ckptkit.mindspore.inspect.loops.stored_attributes import assigned_in_methods
from ckptkit.mindspore.inspect.users import is_mindspores
from ckptkit.mindspore.parameters.apply import tensor_of
from ckptkit.mindspore.state.holders import Stateful, fits

_log = logging.getLogger("ckptkit")

_BEGIN = frozenset(("step_begin", "on_train_step_begin"))
# What no method assigns again is the same in each start, unless it is an object that can change itself.
_CONFIGURATION = (type(None), bool, int, float, str, bytes, timedelta, PurePath, ms.Tensor)

# Public attributes of the two classes; a test compares a resumed run with an uninterrupted run.
_FIELDS: dict[type[Callback], tuple[str, ...]] = {
    EarlyStopping: ("wait", "stopped_epoch", "best"),
    ReduceLROnPlateau: ("wait", "cooldown_counter", "best"),
}


class OtherCallbacks:
    """Stores the state of the callbacks other than `CheckpointCallback`, as a stateful object of the checkpoint.

    A restore has two steps, because the callbacks are known only when training begins, and reset themselves then:
    `load_state_dict` keeps the state, `restore` gives it to the callbacks.

    Attributes:
        others: The callbacks of this training whose state is not stored here.
        reported: Those that were not given by name, with the names of what is stored here or has been warned of.
    """

    def __init__(self) -> None:
        self._adapted: dict[str, Callback] = {}
        self.others: list[Callback] = []
        self.reported: list[Stored] = []
        self._loaded: Mapping[str, Any] | None = None

    def bind(
        self,
        callbacks: Sequence[Callback],
        given: Sequence[object],
        stored: Callable[[nn.Cell | ms.Parameter], bool],
        is_idle: Callable[[Callback], bool] = lambda _: False,
    ) -> None:
        """Register the callbacks of this training; warn of those whose state would be lost.

        Args:
            callbacks: All except `CheckpointCallback`.
            given: Objects that are stored by name.
            stored: Whether the checkpoints have a parameter, or all parameters of a cell.
            is_idle: Whether a callback can have no effect on training.
        """
        self._adapted = {}
        self.reported = []
        self.others = [one for one in callbacks if _adapted_kind(one) is None]
        for callback in callbacks:
            kind = _adapted_kind(callback)
            without = _shown(callback, callbacks)
            if kind is not None:
                nth = sum(name.partition("#")[0] == kind.__name__ for name in self._adapted) + 1
                self._adapted[kind.__name__ if nth == 1 else f"{kind.__name__}#{nth}"] = callback
            known = [*given, *(one for one in callbacks if _adapted_kind(one) is not None)]
            kept = [] if any(callback is one for one in given) else _kept(callback, stored, known, without)
            if not any(callback is one for one in given) and not is_idle(callback):
                kept += _late(callback, without)
            if not any(callback is one for one in given):
                self.reported.append(Stored(callback, frozenset((*(_FIELDS[kind] if kind is not None else ()), *kept))))
            if kept:
                _log.warning(
                    "the callback %s may keep state that is not in the checkpoints: %s. If it matters, %s",
                    *(type(callback).__name__, some(kept), _way_out(callback, kept)),
                )

    def is_adapted(self, callback: Callback) -> bool:
        """Return whether the state of ``callback`` is stored here."""
        return any(callback is one for one in self._adapted.values())

    def early_stop(self) -> str | None:
        """Return which callback ended training for good, or None."""
        for name, callback in self._adapted.items():
            if isinstance(callback, EarlyStopping) and callback.stopped_epoch > 0:
                return f"{name} stopped it at epoch {callback.stopped_epoch}"
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every adapted callback by class name."""
        return {name: _state_of(callback) for name, callback in self._adapted.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep ``state`` until `restore`."""
        self._loaded = state

    def restore(self) -> None:
        """Give the callbacks their loaded state; call it after every callback's ``on_train_begin``."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        for name in sorted(loaded.keys() - self._adapted.keys()):
            _log.warning("the checkpoint has state of a callback %s, which this training does not use", name)
        for name, callback in self._adapted.items():
            if name in loaded:
                _restore(callback, loaded[name])
            else:
                _log.warning("the callback %s is not in the checkpoint and begins afresh", name)


def _adapted_kind(callback: Callback) -> type[Callback] | None:
    return next((kind for kind in _FIELDS if isinstance(callback, kind)), None)


def _kept(
    callback: Callback, stored: Callable[[nn.Cell | ms.Parameter], bool], given: Sequence[object], shown: frozenset[str]
) -> list[str]:
    """Return the names of what may be state and is not stored; of MindSpore's own callbacks only `History` has any."""
    if is_mindspores(callback):
        return [*vars(callback)] if isinstance(callback, History) else []
    kind = _adapted_kind(callback)
    known = {*vars(kind()), *_FIELDS[kind], "best_weights_param_dict"} if kind is not None else ()
    own = {name: value for name, value in vars(callback).items() if name not in known}
    assigned = assigned_in_methods(type(callback))
    fixed = own.keys() - assigned.keys() - changed_in_place(type(callback)) if assigned is not None else set[str]()
    return [
        name
        for name, value in own.items()
        if name not in shown
        and not (isinstance(value, nn.Cell) and stored(value))
        and not any(value is one for one in given)
        and not (name in fixed and _is_configuration(value, stored))
    ]


def _is_configuration(value: Any, stored: Callable[[nn.Cell | ms.Parameter], bool]) -> bool:
    """Return whether a value that no method changes is the same in each start, or a parameter that checkpoints have."""
    if type(value) in (tuple, list, frozenset, ms.ParameterTuple):
        return all(_is_configuration(one, stored) for one in value)
    if isinstance(value, ms.Parameter):
        return stored(value)
    return isinstance(value, _CONFIGURATION)


def _shown(callback: Callback, callbacks: Sequence[Callback]) -> frozenset[str]:
    """Return the attributes of a callback that its methods only show or change, and no other callback may read."""
    kind = type(callback)
    if assigned_in_methods(kind) is None:
        return frozenset()
    return only_shown(kind).difference(*(named_by(type(one)) for one in callbacks if type(one) is not kind))


def _late(callback: Callback, shown: frozenset[str]) -> list[str]:
    """Return the names of what hooks will keep that is not there yet; what a step begins with is of that step alone."""
    assigned = assigned_in_methods(type(callback)) or {}
    if _adapted_kind(callback) is not None or is_mindspores(callback):
        return []
    late = {name for name, hooks in assigned.items() if name not in vars(callback) and not _BEGIN.issuperset(hooks)}
    return sorted(late - shown)


def _way_out(callback: Callback, kept: Sequence[str]) -> str:
    name = type(callback).__name__.lower()
    if isinstance(callback, Stateful):
        return f"pass it by name: stateful={{'{name}': it}}"
    if all(hasattr(callback, one) and fits(getattr(callback, one)) for one in kept):
        return f"pass it by name: stateful={{'{name}': ckptkit.attributes(it, {str(kept)[1:-1]})}}"
    return f"give it state_dict() and load_state_dict(), and pass it by name: stateful={{'{name}': it}}"


def _state_of(callback: Callback) -> dict[str, Any]:
    kind = _adapted_kind(callback)
    assert kind is not None  # noqa: S101 - called for adapted callbacks only
    state: dict[str, Any] = {field: np.array(getattr(callback, field)) for field in _FIELDS[kind]}
    best = getattr(callback, "best_weights_param_dict", None)
    if best is not None:
        leaves = [leaf_of(name, one.asnumpy(), role="state") for name, one in best.items()]
        state["best_weights"] = {leaf.name: [leaf.dtype, np.array(leaf.array)] for leaf in leaves}
    return state


def _restore(callback: Callback, state: Mapping[str, Any]) -> None:
    integers: Callable[[Any], Any] = lambda value: value.item() if value.dtype.kind in "iu" else value  # noqa: E731
    for field, value in state.items():
        if field == "best_weights":
            callback.best_weights_param_dict = {
                name: ms.Parameter(tensor_of(bits, dtype), name=name) for name, (dtype, bits) in value.items()
            }
        else:
            setattr(callback, field, integers(value))
