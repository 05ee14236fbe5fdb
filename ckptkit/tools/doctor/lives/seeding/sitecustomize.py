"""Seeds a script before its first line, so that two runs of it can be compared; found first on PYTHONPATH.

A script that sets its own seeds overrides these. A process that was started ahead of its turn waits at the gate, right
after its import of MindSpore, until the life before it has ended. Also runs the ``sitecustomize`` that this one
shadows. Imports the standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
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

# Audit events whose first argument is a path, each with where its descriptors of folders are.
_REMOVALS = {"shutil.rmtree": 1, "os.rename": 2, "os.rmdir": 1}
_DESCRIPTORS = {**_REMOVALS, "os.mkdir": 2, "open": 3}
_MOST_NOTED = 1000


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


def _nothing(module: Any) -> None:
    """Leave a module alone."""


def _seeds(seed: int) -> dict[str, Callable[[Any], object]]:
    """Seed Python's generator; return what seeds the libraries."""
    random.seed(seed)

    def seed_mindspore(mindspore: Any) -> None:
        mindspore.set_seed(seed)
        mindspore.manual_seed(seed)  # a separate generator, which set_seed does not seed

    return {"numpy": lambda numpy: numpy.random.seed(seed), "mindspore": seed_mindspore}


def _wait_after(module: str, others: Sequence[str], gate: int, actions: dict[str, Callable[[Any], object]]) -> None:
    """Let the script wait at the gate after its import of ``module``; it imports ``others`` there."""
    act = actions.get(module, _nothing)

    def wait(imported: Any) -> None:
        for one in others:
            with contextlib.suppress(ImportError):  # the script will meet it where it imports this itself
                importlib.import_module(one)
        _pass(gate)
        act(imported)

    if module in sys.modules:
        wait(sys.modules[module])
    else:
        actions[module] = wait


def _pass(gate: int) -> None:
    """Say that this process has come to the gate, and wait until it is opened."""
    try:
        os.write(gate, b"!")
        is_open = os.read(gate, 1)
    except OSError:
        is_open = b""
    os.close(gate)
    if not is_open:
        os._exit(1)  # the doctor has ended: nothing of the script may run


def _run_shadowed() -> None:
    here = Path(__file__).resolve().parent
    elsewhere = [one for one in sys.path if Path(one or ".").resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# What the process removed and made, for the probe: the script's run root may be among the first.
removed: list[str] = []
made: list[str] = []


def _note_files(event: str, arguments: tuple[Any, ...]) -> None:
    # No error may reach the script's own call. Paths that begin at a descriptor are left out.
    if event not in _DESCRIPTORS or any(one not in (-1, None) for one in arguments[_DESCRIPTORS[event] :]):
        return
    with contextlib.suppress(OSError, ValueError, TypeError):
        if event in _REMOVALS:
            _note(removed, arguments[0])
        if event == "os.rename":
            _note_made(arguments[1])
        elif event == "os.mkdir" or (event == "open" and arguments[2] & os.O_CREAT):
            _note_made(arguments[0])


def _note_made(path: Any) -> None:
    if isinstance(path, (str, os.PathLike)) and not os.path.lexists(path):
        _note(made, path)


def _note(paths: list[str], path: Any) -> None:
    if len(paths) < _MOST_NOTED and isinstance(path, (str, os.PathLike)):
        paths.append(os.path.realpath(path))


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
_gate, _, _ahead = os.environ.pop("CKPTKIT_GATE", "").partition(":")  # popped: not for the script's own processes
if _plan:
    sys.addaudithook(_note_files)
    _write_errors(Path(_plan).with_suffix(".errors"))
    _seed = json.loads(Path(_plan).read_text())["seed"]
    _actions = {} if _seed is None else _seeds(_seed)
    if _gate:
        _first, *_others = _ahead.split(",")
        _wait_after(_first, _others, int(_gate), _actions)
    if _actions:
        sys.meta_path.insert(0, _ActAfterImport(_actions))
