"""Decides how much of a script may run before the life before it has ended: its first imports of libraries, or nothing.

Guarantees: what is said to be harmless imports libraries and sets constant environment variables. It opens no file of
the script, so it does not matter what the life before still writes. A command that is not Python and a script has
nothing of the kind. Reads the script; pure otherwise, any thread.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_FLAGS = frozenset({"-u", "-B"})
_OURS = frozenset({"mindspore", "ckptkit"})
_LIBRARIES = frozenset({"numpy", "scipy", "pandas", "sklearn", "matplotlib", "PIL", "cv2", "tqdm", "yaml"})
# What `import ckptkit` does not load before its names are used, and the doctor's own part.
_LOADED_LATER = (
    "ckptkit.mindspore.callback.callback",
    "ckptkit.mindspore.state.observe",
    "ckptkit.tools.doctor.lives.probe",
)


def modules_ahead(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a process of ``command`` may import ahead of time, ``mindspore`` first; empty if nothing.

    Args:
        command: The user's command, program first.
        environment: Environment variables of the process.
    """
    script = _script(command)
    if script is None:
        return ()
    try:
        body = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return ()  # the life itself will say so
    places = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    found: set[str] = set()
    for statement in body:
        names = _imported(statement)
        if names is None or not all(_is_library(name, script.parent, places) for name in names):
            break
        found |= names
    if "mindspore" not in found:
        return ()
    return ("mindspore", *(_LOADED_LATER if "ckptkit" in found else ()))


def _script(command: Sequence[str]) -> Path | None:
    program, *arguments = command or [""]
    while arguments and arguments[0] in _FLAGS:
        del arguments[0]
    is_script = _PYTHON.fullmatch(Path(program).name) is not None and arguments and arguments[0].endswith(".py")
    return Path(arguments[0]) if is_script else None


def _imported(statement: ast.stmt) -> set[str] | None:
    """Return the packages that a statement imports; None if it may do anything else that matters."""
    match statement:
        case ast.Import(names=names):
            return {alias.name.partition(".")[0] for alias in names}
        case ast.ImportFrom(module=str(module), level=0):
            return {module.partition(".")[0]}
        case ast.Expr(value=ast.Constant()):
            return set()
        case ast.Assign(targets=[ast.Subscript(value=place, slice=ast.Constant())], value=ast.Constant()):
            return set() if _is_environment(place) else None
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=place, attr="setdefault"), args=args, keywords=[])):
            return set() if _is_environment(place) and all(isinstance(one, ast.Constant) for one in args) else None
        case _:
            return None


def _is_environment(place: ast.expr) -> bool:
    return isinstance(place, ast.Attribute) and ast.unparse(place) == "os.environ"


def _is_library(name: str, folder: Path, places: Iterable[str]) -> bool:
    """Return whether ``name`` is a library, which no module of the user's own hides."""
    if name == "ckptkit":
        return True
    if name not in sys.stdlib_module_names | _LIBRARIES | _OURS:
        return False
    # MindSpore itself may be anywhere on PYTHONPATH, as a build of one's own is.
    searched = [folder] if name == "mindspore" else [folder, *map(Path, places)]
    return not any((place / name).is_dir() or (place / f"{name}.py").exists() for place in searched)
