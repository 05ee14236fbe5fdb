"""Recognizes the optimizer's tensors, and a train cell's bookkeeping, in a MindSpore file by their names.

Guarantees: a name counts as a moment only if it contains the name of a weight of the same shape. The names are those of
``mindspore.nn.optim``, ``mindspore.experimental.optim`` and ``mindspore.train``, 2.7 to 2.10. Pure, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Prefix of a moment's name -> prefix that must exist beside it, since a layer may have the same name.
_MOMENTS: dict[str, str | None] = {
    "accum": None,
    "accum_update": "accum",
    "adam_m": "adam_v",
    "adam_v": "adam_m",
    "exp_avg": None,
    "exp_avg_sq": "exp_avg",
    "grad_accum": None,
    "lamb_m": "lamb_v",
    "lamb_v": "lamb_m",
    "linear": "moments",
    "max_exp_avg_sq": "exp_avg_sq",
    "mean_grad": "mean_square",
    "mean_square": None,
    "moment": "mean_square",
    "moment1": "moment2",
    "moment2": "moment1",
    "moments": None,
    "prev": "step_size",
    "stat": "accum",
    "step_size": "prev",
    "vhat": "moment1",
}

_COUNTERS = re.compile(
    r"global_step|learning_rate(_group_\d+)?|momentum|beta[12]_power|afactor_step|state_step|(grad_)?accum\.divisor"
    r"|scale_sense|loss_scale|current_iterator_step|last_overflow_iterator_step|epoch_num|step_num|batch_num"
)


def of_an_optimizer(shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Return the names of the optimizer's and the train cell's own tensors, given all tensors' ``shapes``."""
    return frozenset(name for name in shapes if _is_counter(name, shapes) or _is_moment(name, shapes))


def _is_counter(name: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    return _COUNTERS.fullmatch(name) is not None and len(shapes[name]) <= 1  # a learning rate may be a list


def _is_moment(name: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    prefix, _, weight = name.partition(".")
    if prefix not in _MOMENTS or shapes.get(weight) != shapes[name]:
        return False
    beside = _MOMENTS[prefix]
    return beside is None or f"{beside}.{weight}" in shapes
