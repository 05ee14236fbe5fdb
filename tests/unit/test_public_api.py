import ast
import importlib
import inspect
from importlib import metadata
from pathlib import Path

import pytest
from support.process import python, run_python

import ckptkit
from ckptkit import data, errors, nn

PACKAGE = Path(ckptkit.__file__).parent

PUBLIC = [
    *("AccumulationPlan", "AccumulationTrainCell", "BoostCycle", "Box", "CheckpointCallback", "CheckpointManager"),
    *("CheckpointNotFoundError", "CkptKitError", "CorruptCheckpointError", "CycleAdapter", "FormatVersionError"),
    *("KeepBest", "KeepCertified", "KeepEvery", "KeepLatest", "Loop", "Mirror", "Preempted", "Preemption", "Ranks"),
    *("ResumeError", "ResumePoint", "SaveEvery", "SaveFailedError", "SaveHandle", "SaveReport", "Saving"),
    *("StaleAttemptError", "StateManager", "StateMismatchError", "StorageError", "System", "Training"),
    *("UnusableCheckpointError", "attributes", "data", "loop", "nearest_plans", "nn", "plan_accumulation"),
    "scale_learning_rate",
]
NAMES = [name for name in PUBLIC if name in ckptkit._HOME]  # without the modules, which have names of their own
LIGHT = [name for name in NAMES if "mindspore" not in ckptkit._HOME[name]]

ERRORS = {
    "CheckpointNotFoundError": FileNotFoundError,
    "CorruptCheckpointError": ValueError,
    "FormatVersionError": ValueError,
    "StateMismatchError": ValueError,
    "ResumeError": RuntimeError,
    "StorageError": OSError,
    "UnusableCheckpointError": ValueError,
    "StaleAttemptError": RuntimeError,
    "SaveFailedError": RuntimeError,
}
UNUSABLE = {"CorruptCheckpointError", "FormatVersionError"}


def printed(code: str) -> list[str]:
    return python("-c", code).stdout.split()


def test_the_public_names_are_those_of_the_tables():
    """Adding one is a decision: it also needs a page of documentation."""
    assert ckptkit.__all__ == PUBLIC == sorted([*ckptkit._HOME, *ckptkit._MODULES])
    assert set(PUBLIC) <= set(dir(ckptkit))
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    for_checkers = {
        alias.name: node.module
        for branch in tree.body
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert for_checkers == {**ckptkit._HOME, **dict.fromkeys(ckptkit._MODULES, "ckptkit")}
    with pytest.raises(AttributeError, match="'ckptkit' has no attribute 'Checkpoint'"):
        _ = ckptkit.Checkpoint
    assert metadata.version("mindspore-ckptkit") == ckptkit.__version__


def test_a_name_loads_what_it_needs_and_no_more():
    loaded = set(printed("import sys, ckptkit; print(*{name.split('.')[0] for name in sys.modules})"))
    assert "ckptkit" in loaded
    assert not loaded & {"mindspore", "numpy", "pydantic", "pydantic_core", "fsspec", "xxhash", "typer", "rich"}
    code = "import sys, ckptkit; ckptkit.StorageError; print(*(n for n in sys.modules if n.startswith('ckptkit')))"
    assert printed(code) == ["ckptkit", "ckptkit.scrubber", "ckptkit.errors"]
    code = "import sys, ckptkit; ckptkit.CheckpointManager; print('mindspore' in sys.modules, 'numpy' in sys.modules)"
    assert printed(code) == ["False", "True"]


def test_public_names_are_documented_in_their_home_modules():
    """Read from the source, so that this needs no MindSpore."""
    for name in NAMES:
        home = ckptkit._HOME[name]
        path = PACKAGE.joinpath(*home.split(".")[1:]).with_suffix(".py")
        docstrings = {
            node.name: ast.get_docstring(node)
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        assert len((docstrings[name] or "").partition("\n")[0]) > 20, name


def test_names_resolve_to_one_object_with_documented_methods():
    for name in LIGHT:
        value = getattr(ckptkit, name)
        assert value is getattr(importlib.import_module(ckptkit._HOME[name]), name)
        assert (value.__module__, value.__name__) == (ckptkit._HOME[name], name)
        undocumented = [
            attribute
            for attribute, value in vars(value).items()
            if not attribute.startswith("_")
            and (inspect.isroutine(value) or isinstance(value, property))
            and not inspect.getdoc(value)
        ]
        assert undocumented == [], name


def test_names_below_mindspore_resolve(tmp_path):
    names = [name for name in NAMES if name not in LIGHT]
    assert names
    own = {module.__name__.rpartition(".")[2]: module.__all__ for module in (data, nn)}
    below = [f"ckptkit.{module}.{name}" for module, each in own.items() for name in each]
    code = f"import ckptkit; print(*(getattr(ckptkit, name).__name__ for name in {names!r}))"
    code += f"; print(all(one.__doc__ for one in ({', '.join(below)},)))"
    ended = run_python("-c", code, folder=tmp_path, environment={})
    assert ended.stdout.split()[-len(names) - 1 :] == [*names, "True"]


@pytest.mark.parametrize("module", [data, nn])
def test_the_modules_of_the_facade_list_their_names(module):
    assert module.__all__ == sorted(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    assert getattr(ckptkit, module.__name__.rpartition(".")[2]) is module
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


def test_the_error_tree():
    tree = {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == "ckptkit.errors"
    }
    assert tree.keys() == {"CkptKitError", "Preempted", *ERRORS} <= set(ckptkit.__all__)
    assert errors.Preempted.__bases__ == (SystemExit,)  # no `except CkptKitError` takes it for a failure
    assert errors.CkptKitError.__bases__ == (Exception,)
    for name, builtin in ERRORS.items():
        base = (errors.UnusableCheckpointError,) if name in UNUSABLE else (errors.CkptKitError, builtin)
        assert tree[name].__bases__ == base, name
        error = tree[name]("what happened, where, and what to do next")
        assert str(error) == "what happened, where, and what to do next"
        assert isinstance(error, builtin)
        assert getattr(error, "errno", None) is None
