"""Stores what a trainer with a loop of its own counts and logs, by `TrainerProgress`.

Guarantees: the attributes of the trainer's state and control, its sums for the log, its own count of micro-steps and
the callbacks' plain attributes continue where they were. Settings, which the arguments of each start decide, are not
stored. Main thread only.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import mindspore as ms
import numpy as np

from ckptkit.core.text import some
from ckptkit.mindspore.observe.users import is_users
from ckptkit.mindspore.state.holders import Reporting, fits

_log = logging.getLogger("ckptkit")

# Of the trainer's state: each start sets them anew, from its arguments.
_SETTINGS = frozenset(
    (
        *("max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size"),
        *("is_local_process_zero", "is_world_process_zero", "is_hyper_param_search", "trial_name", "trial_params"),
        "stateful_callbacks",
    )
)
# Of its control: where training goes on, nothing has stopped it. A run that was complete may get more epochs.
_STOPS = ("should_training_stop", "should_epoch_stop")
_SUMS = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos")  # of the trainer, for its log


class TrainerProgress(Reporting):
    """Stores the progress of one training of ``trainer``, as a stateful object and as a `CycleAdapter`.

    Args:
        trainer: Its state, control and callbacks are looked up each time: it may replace them.
        named: Objects that are stored by names of their own; callbacks among them are left to these.

    Attributes:
        trained: Micro-steps since epoch 0, as the trainer called ``training_step``.
        loss: The sum of the losses that the trainer's loop has in a variable, ``tr_loss``; None before the first step.
        returned: What ``training_step`` returned last.
    """

    # On CPU, MindSpore may round a loss otherwise in the first steps of a process; the doctor notes that of losses.
    reported = frozenset(("loss", "returned", "sums"))

    def __init__(self, trainer: Any, named: Iterable[Any]) -> None:
        self._trainer = trainer
        self._named = {id(one) for one in named}
        self.trained = 0
        self.loss: Any = None
        self.returned: Any = None
        self._loaded: Mapping[str, Any] | None = None

    @property
    def accumulation_steps(self) -> int:
        """K of the trainer's arguments."""
        return int(self._trainer.args.gradient_accumulation_steps)

    @property
    def micro_step(self) -> int:
        """Micro-steps of the running cycle: the trainer's cycles do not end with an epoch."""
        return self.trained % self.accumulation_steps

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and arrays."""
        trainer = self._trainer
        return {
            "trained": self.trained,
            "loss": _plain(self.loss),
            "returned": _plain(self.returned),
            "state": {name: one for name, one in vars(trainer.state).items() if name not in _SETTINGS},
            "control": {name: one for name, one in vars(trainer.control).items() if name not in _STOPS},
            "sums": {name: getattr(trainer, name) for name in _SUMS if hasattr(trainer, name)},
            "callbacks": self._of_callbacks(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self._loaded = state
        self.trained, self.loss, self.returned = state["trained"], state["loss"], state["returned"]
        self.again()

    def again(self) -> None:
        """Load what was loaded last, after the trainer's loop has changed its own attributes; not this object's."""
        if self._loaded is None:
            return
        trainer, state = self._trainer, self._loaded
        for owner, values in ((trainer.state, state["state"]), (trainer.control, state["control"])):
            for name, value in values.items():
                setattr(owner, name, _copy(value))
        for name in _STOPS:
            setattr(trainer.control, name, False)
        for name, value in state["sums"].items():
            setattr(trainer, name, value)
        stored = state["callbacks"]
        mine = {name: one for name, one in self._callbacks().items() if name in stored}
        for name, one in mine.items():
            for attribute, value in stored[name].items():
                setattr(one, attribute, _copy(value))
        lost = sorted(name for name in stored.keys() - mine.keys() if stored[name])
        if lost:
            _log.warning(
                "The resumed run may not be bit-exact: the run began with the callback %s, which this trainer does not "
                "have. Give it the same callbacks in the same order",
                some(lost),
            )

    def _of_callbacks(self) -> dict[str, Any]:
        return {
            name: (
                dict(one.state()["attributes"])
                if _tells(one)
                else {attribute: value for attribute, value in _attributes(one).items() if fits(value)}
            )
            for name, one in self._callbacks().items()
        }

    def _callbacks(self) -> dict[str, Any]:
        """Return the callbacks that may keep something, by their class, and a number among those of one class.

        The callbacks of an installed framework only show, unless they tell their state.
        """
        framework = framework_of(self._trainer)
        ones = [
            one
            for one in self._trainer.callback_handler.callbacks
            if id(one) not in self._named and (_tells(one) or _may_keep(type(one).__module__, framework))
        ]
        seen = Counter[str]()
        found = {}
        for one in ones:
            kind = type(one).__name__
            seen[kind] += 1
            found[f"{kind}-{seen[kind]}"] = one
        return found


def framework_of(trainer: Any) -> str:
    """Return the name of the package that has the trainer's loop."""
    kinds = [one for one in type(trainer).__mro__ if "train" in vars(one)]
    return kinds[-1].__module__.partition(".")[0]


def _may_keep(module: str, framework: str) -> bool:
    return is_users(module) or module.partition(".")[0] != framework


def _tells(callback: Any) -> bool:
    """Return whether a callback tells its state in the trainer's own form (``ExportableState``)."""
    return callable(getattr(callback, "state", None)) and callable(getattr(callback, "from_state", None))


def _attributes(callback: Any) -> dict[str, Any]:
    return getattr(callback, "__dict__", {})


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value] if isinstance(value, list) else tuple(map(_plain, value))
    return np.asarray(value.asnumpy()) if isinstance(value, ms.Tensor) else value


def _copy(value: Any) -> Any:
    """Return a value whose containers are its own: the loaded state is loaded more than once."""
    if isinstance(value, dict):
        return type(value)((key, _copy(one)) for key, one in value.items())
    return type(value)(map(_copy, value)) if isinstance(value, (list, tuple)) else value
