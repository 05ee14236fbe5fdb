"""Seeds a script before its first line, so that two runs of it can be compared; found first on PYTHONPATH.

A script that sets its own seeds overrides these. Also runs the ``sitecustomize`` that this one shadows. Imports the
standard library only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class _ActAfterImport(MetaPathFinder):
    """Calls a function with a module right after its import."""

    def __init__(self, actions: dict[str, Callable[[Any], object]]) -> None:
        self._actions = actions

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        act = self._actions.pop(name, None)
        if act is None:
            return None
        spec = importlib.util.find_spec(name)  # also asks this finder, which no longer knows the name
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                act(module)

            loader.exec_module = execute_and_act
        return spec


def _seeds(seed: int) -> dict[str, Callable[[Any], object]]:
    """Seed Python's generator; return what seeds the libraries."""
    random.seed(seed)

    def seed_mindspore(mindspore: Any) -> None:
        mindspore.set_seed(seed)
        mindspore.manual_seed(seed)  # a separate generator, which set_seed does not seed

    return {"numpy": lambda numpy: numpy.random.seed(seed), "mindspore": seed_mindspore}


def _run_shadowed() -> None:
    here = Path(__file__).resolve().parent
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _write_errors(file: Path) -> None:
    """Write also to ``file`` the error that ends this process: a launcher may hide what its ranks print."""
    show = sys.excepthook

    def write(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        with contextlib.suppress(OSError), file.open("a", encoding="utf-8", errors="backslashreplace") as out:
            out.write("".join(traceback.format_exception(kind, error, trace)))
        show(kind, error, trace)

    sys.excepthook = write


_run_shadowed()
_, _, _plan = os.environ.get("CKPTKIT_HOOKS", "").partition(":")
if _plan:
    _write_errors(Path(_plan).with_suffix(".errors"))
    _seed = json.loads(Path(_plan).read_text())["seed"]
    if _seed is not None:
        sys.meta_path.insert(0, _ActAfterImport(_seeds(_seed)))
