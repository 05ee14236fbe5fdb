"""Puts options of a manager, a callback or a state into their groups, so that a test names one without its group."""

import importlib
from typing import Any

_MANAGER, _STATE = "ckptkit.manager.options", "ckptkit.mindspore.state.manager"
# The argument, the class and its module; then the flat names, and how they are called in the class if otherwise.
_GROUPS: dict[str, tuple[str, str, dict[str, str]]] = {
    "saving": (
        *("Saving", _MANAGER),
        {
            "on_save_error": "on_error",
            **{name: name for name in ("when_busy", "mid_cycle", "window", "buffer_bytes", "on_save", "events")},
        },
    ),
    "ranks": (
        *("Ranks", _MANAGER),
        {"rank_patience": "patience", **{name: name for name in ("check_replicas", "elastic", "placement")}},
    ),
    "preemption": ("Preemption", _MANAGER, {"grace": "grace", "on_preempt": "then", "preempt_when": "when"}),
    "system": ("System", _MANAGER, {name: name for name in ("clock", "monotonic", "new_token", "host", "boot")}),
    "training": (
        *("Training", _STATE),
        {name: name for name in ("augmentation", "cycle", "ignore", "on_k_change", "read_only")},
    ),
}
_MIRROR = {"mirror_options": "storage_options"}


def grouped(**options: Any) -> dict[str, Any]:
    """Return ``options`` as a constructor takes them; what belongs to no group stays as it is."""
    for argument, (group, module, names) in _GROUPS.items():
        given = {names[name]: options.pop(name) for name in names if name in options}
        if given:
            assert argument not in options, f"{sorted(given)} beside {argument}="
            options[argument] = getattr(importlib.import_module(module), group)(**given)
    of_mirror = {_MIRROR[name]: options.pop(name) for name in _MIRROR if name in options}
    if of_mirror and options.get("mirror") is not None:
        options["mirror"] = importlib.import_module(_MANAGER).Mirror(options["mirror"], **of_mirror)
    return options
