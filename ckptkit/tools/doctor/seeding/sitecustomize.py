"""Seeds a script before its first line, so that two runs of it can be compared; found first on PYTHONPATH.

A script that sets its own seeds overrides these. Also runs the ``sitecustomize`` that this one shadows. Imports the
standard library only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class _SeedAfterImport(MetaPathFinder):
    """Seeds a module's generators right after its import."""

    def __init__(self, seeds: dict[str, Callable[[Any], object]]) -> None:
        self._seeds = seeds

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        seed = self._seeds.pop(name, None)
        if seed is None:
            return None
        spec = importlib.util.find_spec(name)  # also asks this finder, which no longer knows the name
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_seed(module: ModuleType) -> None:
                execute(module)
                seed(module)

            loader.exec_module = execute_and_seed
        return spec


def _seed_everything(seed: int) -> None:
    random.seed(seed)

    def seed_mindspore(mindspore: Any) -> None:
        mindspore.set_seed(seed)
        mindspore.manual_seed(seed)  # a separate generator, which set_seed does not seed

    seeds = {"numpy": lambda numpy: numpy.random.seed(seed), "mindspore": seed_mindspore}
    sys.meta_path.insert(0, _SeedAfterImport(seeds))


def _run_shadowed() -> None:
    here = Path(__file__).resolve().parent
    elsewhere = [one for one in sys.path if Path(one or ".").resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_shadowed()
_, _, _plan = os.environ.get("CKPTKIT_HOOKS", "").partition(":")
if _plan:
    _seed = json.loads(Path(_plan).read_text())["seed"]
    if _seed is not None:
        _seed_everything(_seed)
