"""Who may import whom, read from the source and not from what happens to be loaded."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ckptkit

PACKAGE = Path(ckptkit.__file__).parent

# Lowest first: whatever stands in one of these imports only what stands before it, also inside functions.
PACKAGES = (
    *("scrubber", "errors", "core", "format", "storage", "snapshot", "checkpoint", "run", "manager"),
    *("mindspore", "tools", "cli", "testing", "data", "nn", "__main__"),
)
# The same within a package; a new module takes its place here.
MODULES = {
    "checkpoint": (
        *("reread", "commit", "open", "shard_bytes", "parts", "read", "resharded", "receipts", "write", "transfer"),
    ),
    "run": (
        *("keep_policy", "index", "event_log", "ownership", "takeover", "resolve", "catalog", "attempt"),
        *("retention", "root_and_mirrors", "saver", "upload", "goodput", "interval"),
    ),
    "manager": (
        *("process", "heartbeat", "options", "agreement", "writer", "hooks", "preemption", "recorder"),
        *("save_schedule", "preemption_schedule", "mirrors", "run", "manager"),
    ),
    "mindspore": (
        *("versions", "kernel_threads", "process_group", "rng", "digits", "nn", "train", "parameters", "data"),
        *("observe", "state", "loop", "callback", "demo"),
    ),
}
USES_FACADE = ("cli",)  # as a user does, inside functions


@dataclass(frozen=True)
class Import:
    """One imported name: ``from a.b import c`` is ``a.b.c``."""

    importer: str
    line: int
    target: str
    deferred: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def modules(package: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = ["ckptkit", *path.relative_to(package).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, path: Path) -> Iterator[Import]:
    """Every import of a module, those inside functions (``deferred``) and under TYPE_CHECKING included."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def walk(node: ast.AST, deferred: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, node.lineno, alias.name, deferred)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                yield Import(module, node.lineno, f"{base}.{alias.name}", deferred)
        inner = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inner)

    yield from walk(ast.parse(path.read_text()), False)


def unit_of(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else None


def wrong_with(one: Import, package_modules: dict[str, Path]) -> str | None:
    here, there = unit_of(one.importer), unit_of(one.target)
    root = one.target.split(".")[0]
    if root == "mindspore" and here != "mindspore":
        return "only ckptkit.mindspore imports mindspore"
    if root != "ckptkit" or here is None:
        return None  # the facade itself knows everybody
    if there == here:
        return wrong_within(here, one)
    if there is None or not any(f"{name}.".startswith(f"ckptkit.{there}.") for name in package_modules):
        return None if here in USES_FACADE and one.deferred else "the facade is for users"
    return "upward" if PACKAGES.index(there) > PACKAGES.index(here) else None


def wrong_within(package: str, one: Import) -> str | None:
    order = MODULES.get(package, ())
    here, there = (name.split(".")[2] if name.count(".") > 1 else None for name in (one.importer, one.target))
    if here not in order or there not in order:
        return None
    return "upward" if order.index(there) > order.index(here) else None


def violations(package: Path) -> list[str]:
    found = modules(package)
    units = {unit for module in found if (unit := unit_of(module)) is not None}
    wrong = [f"ckptkit/{unit} has no place" for unit in sorted(units - set(PACKAGES))]
    for unit, order in MODULES.items():
        there = {module.split(".")[2] for module in found if module.startswith(f"ckptkit.{unit}.")}
        wrong += [f"ckptkit/{unit}/{module} has no place" for module in sorted(there - set(order))]
    for module, path in found.items():
        if unit_of(module) in PACKAGES or module == "ckptkit":
            for one in imports(module, path):
                if reason := wrong_with(one, found):
                    wrong.append(f"{one}: {reason}")
    return wrong


def edges(package: Path) -> dict[str, set[str]]:
    """Module to modules that it imports when it is loaded, within ckptkit and without the facade."""
    found = modules(package)
    graph: dict[str, set[str]] = {}
    for module, path in found.items():
        if module == "ckptkit":
            continue
        targets = set()
        for one in imports(module, path):
            name = one.target
            while name and name not in found:
                name = name.rpartition(".")[0]
            if name not in ("", "ckptkit", module) and not one.deferred:
                targets.add(name)
        graph[module] = targets
    return graph


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    left = {node: set(targets) for node, targets in graph.items()}
    while free := [node for node, targets in left.items() if not targets & left.keys()]:
        for node in free:
            del left[node]
    return sorted(left)


def test_every_import_follows_an_arrow_and_no_circle():
    """A package's own __init__ may gather its modules, and those import each other, never the package."""
    assert violations(PACKAGE) == []
    graph = edges(PACKAGE)
    assert cycle_in(graph) == []
    # Guards the guard: known arrows are among those that it read.
    assert "ckptkit.run.attempt" in graph["ckptkit.manager.run"]
    assert "ckptkit.core.tensors" in graph["ckptkit.format.documents"]
    assert len(graph) > 25


def test_what_some_modules_may_import():
    """Errors only the standard library, but for the scrubber; MindSpore's modules that moved warn in every training."""
    found = modules(PACKAGE)
    imported = {module: {one.target for one in imports(module, path)} for module, path in found.items()}
    assert "ckptkit.manager.manager.CheckpointManager" in imported["ckptkit"]  # under TYPE_CHECKING
    assert imported["ckptkit.errors"] == {"__future__.annotations", "ckptkit.scrubber.scrub"}
    assert {target.partition(".")[0] for target in imported["ckptkit.scrubber"]} <= sys.stdlib_module_names
    assert [one for each in imported.values() for one in each if one.startswith("mindspore.common.api")] == []


SMALL = {
    "__init__.py": "from ckptkit.mindspore.state import X",
    "errors.py": "",
    "core/progress.py": "from ckptkit.errors import CkptKitError",
    "run/index.py": "from ckptkit.core import progress",
    "run/resolve.py": "import mindspore_like\nfrom ckptkit.run.index import Index",
    "manager/manager.py": "from ckptkit.errors import X\nfrom ..run.resolve import choose",
    "mindspore/state.py": "import mindspore as ms\nfrom mindspore import nn",
    "cli/__init__.py": "from ckptkit.mindspore.state import X\n\ndef run():\n    import ckptkit as ck",
    "testing/__init__.py": "",
}
FORBIDDEN = [
    ("errors.py", "from . import core", "upward"),
    ("core/progress.py", "import ckptkit.run.index as f", "upward"),
    ("run/index.py", "def f():\n    from .resolve import choose", "upward"),
    ("manager/manager.py", "if TYPE_CHECKING:\n    from ckptkit.mindspore.state import StateManager", "upward"),
    ("manager/manager.py", "class C:\n    async def f(self):\n        import ckptkit.cli", "upward"),
    ("manager/manager.py", "import mindspore", "only ckptkit.mindspore imports mindspore"),
    ("manager/manager.py", "def f():\n    from ckptkit import KeepLatest", "the facade is for users"),
    ("cli/__init__.py", "import ckptkit as ck", "the facade is for users"),
    ("utilities.py", "", "has no place"),
    ("run/utilities.py", "", "has no place"),
]


def small_package(folder: Path, **changes: str) -> Path:
    for name, text in {**SMALL, **changes}.items():
        path = folder / "ckptkit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "ckptkit"


def test_a_forbidden_import_is_caught(tmp_path):
    package = small_package(tmp_path / "sound")
    assert (violations(package), cycle_in(edges(package))) == ([], [])
    for number, (name, text, reason) in enumerate(FORBIDDEN):
        (caught,) = violations(small_package(tmp_path / f"{number}", **{name: text}))
        assert caught.endswith(reason), (name, text)
    circle = small_package(tmp_path / "circle", **{"core/progress.py": "from ckptkit.run.index import X"})
    assert {"ckptkit.core.progress", "ckptkit.run.index"} <= set(cycle_in(edges(circle)))


# What changes a disk: of `os`, and of paths.
CALLS = {"write", "pwrite", "pwritev", "writev", "truncate", "ftruncate", "posix_fallocate", "sendfile"}
CALLS |= {"fsync", "fdatasync", "sync", "link", "symlink", "unlink", "remove", "rename", "renames", "replace"}
CALLS |= {"mkdir", "makedirs", "rmdir", "removedirs", "copy_file_range"}
OF_PATHS = {"write_text", "write_bytes", "touch", "unlink", "rename", "mkdir", "rmdir", "symlink_to", "hardlink_to"}
ELSEWHERE = {
    "ckptkit.manager.heartbeat": "the folder in memory that `ckptkit run` names",
    "ckptkit.manager.preemption": "stderr, in a signal's handler, and the pipe that a signal wakes a thread by",
    "ckptkit.tools.supervisor": "the same folder, and stderr",
    "ckptkit.tools.doctor": "a training that is thrown away",
    "ckptkit.cli.examination": "the folder that --keep names, and the file that --junit names, never read back",
    "ckptkit.cli.commands.run": "the file that --metrics names, from which nothing is read back",
    "ckptkit.cli.commands.demo": "a training that is thrown away",
    "ckptkit.mindspore.demo": "a training that is thrown away",
}


def changes_of(package: Path) -> list[str]:
    """Places that change a disk, or open a file to, past `SystemCalls`."""
    found = []
    for module, path in modules(package).items():
        if module == "ckptkit.storage.system_calls" or any(f"{module}.".startswith(f"{one}.") for one in ELSEWHERE):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _changes_disk(node):
                found.append(f"{module}:{node.lineno} {ast.unparse(node.func)}")
    return found


def _changes_disk(call: ast.Call) -> bool:
    owner, _, name = ast.unparse(call.func).rpartition(".")
    if name == "open" and owner in ("", "io", "os", "builtins"):
        how = ast.unparse(call.args[1]) if len(call.args) > 1 else ""
        return "O_CREAT" in how if owner == "os" else bool(set("wxa+") & set(how))
    if owner in ("os", "shutil"):
        return owner == "shutil" or name in CALLS
    return name in OF_PATHS and owner not in ("SYSTEM", "self._system")  # the last one is fsspec's


def test_only_system_calls_change_a_disk():
    assert changes_of(PACKAGE) == []
