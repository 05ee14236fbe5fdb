"""What is measured: one class per way to save, all below one seam, each over a `Workload` in its own framework.

To measure another library, add a subclass of `system.Nothing` to the module of its framework, and its name here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from .system import System
from .workload import Workload

# The module that has a system. Frameworks do not share an environment, and a module imports its own.
MODULES = {
    **dict.fromkeys(("none", "mindspore-ckpt", "mindspore-safetensors", "copy"), "mindspore_systems"),
    **dict.fromkeys(("ckptkit", "ckptkit-slice", "ckptkit-off"), "mindspore_systems"),
    **dict.fromkeys(("torch-safetensors", "dcp"), "torch_systems"),
    "orbax": "jax_systems",
}
ENVIRONMENTS = {"mindspore_systems": "mindspore", "torch_systems": "torch", "jax_systems": "jax"}


def environment_of(name: str) -> str:
    """The environment whose interpreter measures a system; the benchmark itself runs in ``mindspore``."""
    return ENVIRONMENTS[MODULES[name]]


def find(name: str) -> tuple[type[Workload], Callable[[Any, Path], System]]:
    """The workload of a system's framework, and what makes the system from one and a folder."""
    module = import_module(f".{MODULES[name]}", __package__)
    return module.WORKLOAD, module.SYSTEMS[name]
