"""Draws mutants: small changes of the product that some test should notice.

The changes are mutmut's. Left out are texts with a space in them and what is logged: a word of a message is no promise.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.mutation.file_mutation import create_mutations

# The packages and modules that a wrong line of loses or changes somebody's training.
MUTATED = (
    *(f"{package}/**/*.py" for package in ("format", "storage", "snapshot", "checkpoint", "run", "manager")),
    *(f"mindspore/{package}/*.py" for package in ("callback", "train", "parameters", "state", "data", "nn")),
    *("mindspore/*.py", "scrubber.py", "core/worker.py"),
)
NOT_MUTATED = ("mindspore/demo.py",)


@dataclass(frozen=True)
class Mutant:
    path: str
    number: int
    lines: tuple[int, int]
    diff: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.lines[0]}#{self.number}"


def draw(repository: Path, count: int, seed: int) -> list[Mutant]:
    """A uniform sample of all mutants, the same for the same code and seed."""
    population = [(path, number) for path in modules(repository) for number in range(len(_changes(repository, path)))]
    chosen = sorted(random.Random(seed).sample(population, count))
    return [_described(repository, path, number) for path, number in chosen]


def modules(repository: Path) -> list[str]:
    package = repository / "ckptkit"
    found = {path for pattern in MUTATED for path in package.glob(pattern)}
    left_out = {package / name for name in NOT_MUTATED}
    return sorted(str(path.relative_to(repository)) for path in found - left_out if path.name != "__init__.py")


def mutated(repository: Path, mutant: Mutant) -> str:
    module, changes = _parsed(repository, mutant.path)
    original, changed = changes[mutant.number]
    return module.deep_replace(original, changed).code


_cache: dict[str, tuple[cst.Module, list[tuple[cst.CSTNode, cst.CSTNode]]]] = {}


def _parsed(repository: Path, path: str) -> tuple[cst.Module, list[tuple[cst.CSTNode, cst.CSTNode]]]:
    if path not in _cache:
        module, mutations, _, _ = create_mutations(path, (repository / path).read_text(encoding="utf-8"))
        logged = {id(node) for call in _log_calls(module) for node in _below(call)}
        kept = [
            (one.original_node, one.mutated_node)
            for one in mutations
            if id(one.original_node) not in logged and not _is_prose(one.original_node)
        ]
        _cache[path] = module, kept
    return _cache[path]


def _changes(repository: Path, path: str) -> list[tuple[cst.CSTNode, cst.CSTNode]]:
    return _parsed(repository, path)[1]


def _is_prose(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleString) and " " in str(node.evaluated_value)


def _log_calls(module: cst.Module) -> Iterator[cst.Call]:
    for node in _below(module):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            owner = node.func.value
            if isinstance(owner, cst.Name) and owner.value in ("_log", "log", "logger", "_logger", "warnings"):
                yield node


def _below(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _below(child)


def _described(repository: Path, path: str, number: int) -> Mutant:
    module, changes = _parsed(repository, path)
    original, changed = changes[number]
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    parents = wrapper.resolve(ParentNodeProvider)
    statement: cst.CSTNode = original
    while not isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement):
        statement = parents[statement]
    place = wrapper.resolve(PositionProvider)[
        original if isinstance(statement, cst.BaseCompoundStatement) else statement
    ]
    before, after = module.code.splitlines(), module.deep_replace(original, changed).code.splitlines()
    lines = [line for line in difflib.unified_diff(before, after, n=0, lineterm="") if line[:3] not in ("---", "+++")]
    return Mutant(path, number, (place.start.line, place.end.line), "\n".join(lines))
