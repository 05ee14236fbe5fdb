from __future__ import annotations

import ast
import importlib
import inspect
from importlib import metadata
from pathlib import Path

import pytest
from support.process import python

import ckptkit
from ckptkit import data, errors, nn

PACKAGE = Path(ckptkit.__file__).parent

PUBLIC = [
    "AccumulationPlan",
    "AccumulationTrainCell",
    "BoostCycle",
    "Box",
    "CheckpointCallback",
    "CheckpointManager",
    "CheckpointNotFoundError",
    "CkptKitError",
    "CorruptCheckpointError",
    "CycleAdapter",
    "FormatVersionError",
    "KeepBest",
    "KeepCertified",
    "KeepEvery",
    "KeepLatest",
    "Mirror",
    "Preempted",
    "Preemption",
    "Ranks",
    "ResumeError",
    "ResumePoint",
    "SaveEvery",
    "SaveFailedError",
    "SaveHandle",
    "SaveReport",
    "Saving",
    "StaleAttemptError",
    "StateManager",
    "StateMismatchError",
    "StorageError",
    "System",
    "Training",
    "UnusableCheckpointError",
    "attributes",
    "data",
    "nearest_plans",
    "nn",
    "plan_accumulation",
    "scale_learning_rate",
]

NAMES = [name for name in PUBLIC if name in ckptkit._HOME]  # without the modules, which have names of their own

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


def printed(code: str) -> str:
    """What a fresh interpreter prints."""
    return python("-c", code).stdout.strip()


def test_the_public_names():
    """Adding one is a decision: it also needs a page of documentation."""
    assert ckptkit.__all__ == PUBLIC


def test_the_tables_of_the_facade_agree():
    assert ckptkit.__all__ == sorted([*ckptkit._HOME, *ckptkit._MODULES])
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


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, ckptkit; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = set(printed(code).split())
    assert "ckptkit" in loaded
    assert not loaded & {"mindspore", "numpy", "pydantic", "pydantic_core", "fsspec", "xxhash", "typer", "rich"}


def test_public_name_loads_no_mindspore():
    """A name loads the module of its own, and not MindSpore."""
    code = "import sys, ckptkit; ckptkit.CheckpointManager; print('mindspore' in sys.modules, 'numpy' in sys.modules)"
    assert printed(code) == "False True"


def test_the_errors_load_nothing_but_themselves():
    code = "import sys, ckptkit; ckptkit.StorageError; print(*(n for n in sys.modules if n.startswith('ckptkit')))"
    assert printed(code).split() == ["ckptkit", "ckptkit.scrubber", "ckptkit.errors"]


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_documented_in_their_home_modules(name):
    """Read from the source, so that this needs no MindSpore."""
    home = ckptkit._HOME[name]
    path = PACKAGE.joinpath(*home.split(".")[1:]).with_suffix(".py")
    assert path.exists(), f"{home} does not exist"
    defined = {
        node.name: ast.get_docstring(node)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    assert name in defined, f"{home} does not define {name}"
    assert defined[name]
    assert len(defined[name].splitlines()[0]) > 20


@pytest.mark.parametrize("name", [name for name in NAMES if "mindspore" not in ckptkit._HOME[name]])
def test_names_resolve_to_one_object(name):
    value = getattr(ckptkit, name)
    assert value is getattr(importlib.import_module(ckptkit._HOME[name]), name)
    assert (value.__module__, value.__name__) == (ckptkit._HOME[name], name)


def test_names_below_mindspore_resolve():
    names = [name for name in NAMES if "mindspore" in ckptkit._HOME[name]]
    assert names
    code = f"import ckptkit; print(*(getattr(ckptkit, name).__name__ for name in {names!r}))"
    assert printed(code).split()[-len(names) :] == names


@pytest.mark.parametrize("name", [name for name in NAMES if "mindspore" not in ckptkit._HOME[name]])
def test_every_public_method_is_documented(name):
    undocumented = [
        attribute
        for attribute, value in vars(getattr(ckptkit, name)).items()
        if not attribute.startswith("_")
        and (inspect.isroutine(value) or isinstance(value, property))
        and not inspect.getdoc(value)
    ]
    assert undocumented == []


@pytest.mark.parametrize("module", [data, nn])
def test_the_modules_of_the_facade_list_their_names(module):
    assert module.__all__ == sorted(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    assert getattr(ckptkit, module.__name__.rpartition(".")[2]) is module
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing
    names = ", ".join(f"ckptkit.{module.__name__.rpartition('.')[2]}.{name}" for name in module.__all__)
    assert printed(f"import ckptkit; print(all(one.__doc__ for one in ({names},)))") == "True"


def test_unknown_name_raises_attribute_error_and_dir_lists():
    """An unknown name is an AttributeError, and dir() lists the public names."""
    with pytest.raises(AttributeError, match="'ckptkit' has no attribute 'Checkpoint'"):
        _ = ckptkit.Checkpoint
    assert set(PUBLIC) <= set(dir(ckptkit))


def test_the_version_is_that_of_the_project():
    assert metadata.version("mindspore-ckptkit") == ckptkit.__version__


def test_the_error_tree():
    found = {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == "ckptkit.errors"
    }
    assert found.keys() == {"CkptKitError", "Preempted", *ERRORS}
    assert errors.Preempted.__bases__ == (SystemExit,)  # no `except CkptKitError` takes it for a failure
    assert errors.CkptKitError.__bases__ == (Exception,)
    for name, builtin in ERRORS.items():
        base = (errors.UnusableCheckpointError,) if name in UNUSABLE else (errors.CkptKitError, builtin)
        assert found[name].__bases__ == base, name
        assert issubclass(found[name], builtin)


def test_every_error_is_public():
    assert {"CkptKitError", "Preempted", *ERRORS} <= set(ckptkit.__all__)


def test_preempted_has_exit_code_143_and_names_checkpoint():
    error = errors.Preempted("saved a000001-c0000000002-m0003", "a000001-c0000000002-m0003")
    assert (error.code, str(error)) == (143, "saved a000001-c0000000002-m0003")
    assert error.checkpoint == "a000001-c0000000002-m0003"
    assert errors.Preempted("nothing").checkpoint is None


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_what_it_was_told(name):
    error = getattr(errors, name)("what happened, where, and what to do next")
    assert str(error) == "what happened, where, and what to do next"
    assert isinstance(error, errors.CkptKitError)
    assert getattr(error, "errno", None) is None
