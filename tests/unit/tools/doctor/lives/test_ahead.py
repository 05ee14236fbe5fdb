"""What of a script may run before its turn."""

from __future__ import annotations

import os

import pytest

from ckptkit.tools.doctor.lives.ahead import modules_ahead

ALL = ("mindspore", "ckptkit")


def found(folder, script: str, *, command=("python", "{}"), environment=None) -> tuple[str, ...]:
    """The packages, each once."""
    path = folder / "train.py"
    path.write_text(script)
    modules = modules_ahead([one.format(path) for one in command], environment or {})
    return tuple(dict.fromkeys(one.partition(".")[0] for one in modules))


@pytest.mark.parametrize(
    ("script", "packages"),
    [
        ("import mindspore as ms\nimport ckptkit as ck\n", ALL),
        ("import ckptkit as ck\nimport mindspore.dataset as ds\n", ALL),
        ('"""It trains."""\nfrom __future__ import annotations\nimport os, sys\nfrom mindspore import nn\n', ALL[:1]),
        ("import os\nos.environ['GLOG_v'] = '3'\nos.environ.setdefault('A', 'b')\nimport mindspore\n", ALL[:1]),
        ("import mindspore\nopen('x')\nimport ckptkit\n", ALL[:1]),
    ],
)
def test_first_imports_of_libraries_may_come_early(tmp_path, script, packages):
    assert found(tmp_path, script) == packages


@pytest.mark.parametrize(
    "script",
    [
        "import shutil\nshutil.rmtree('out')\nimport mindspore\n",
        "import os\nos.environ['ROOT'] = os.getcwd()\nimport mindspore\n",
        "import os\nos.environ.setdefault('ROOT', os.getcwd())\nimport mindspore\n",
        "import mylib\nimport mindspore\n",
        "from . import mindspore\n",
        "if True:\n    import mindspore\n",
        "print('here')\nimport mindspore\n",
        "import ckptkit\n",
        "import mindspore as\n",
    ],
)
def test_nothing_of_the_users_own_runs_early(tmp_path, script):
    assert found(tmp_path, script) == ()


@pytest.mark.parametrize("name", ["mindspore.py", "json.py", "mindspore/__init__.py"])
def test_a_module_of_the_users_that_hides_a_library_is_no_library(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("open('x')")
    assert found(tmp_path, "import json\nimport mindspore\n") == ()


def test_a_library_hidden_on_the_path_is_none(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/json.py").write_text("open('x')")
    path = {"PYTHONPATH": os.pathsep.join(["", str(tmp_path / "site")])}
    assert found(tmp_path, "import json\nimport mindspore\n", environment=path) == ()
    assert found(tmp_path, "import os\nimport mindspore\n", environment=path) == ("mindspore",)


@pytest.mark.parametrize(
    ("command", "packages"),
    [
        (("/usr/bin/python3.11", "-u", "{}", "--lr", "1"), ALL[:1]),
        (("python", "-m", "train"), ()),
        (("python", "-I", "{}"), ()),
        (("bash", "{}"), ()),
        (("python", "{}.no.py"), ()),
        (("python",), ()),
        ((), ()),
    ],
)
def test_only_a_python_script_is_read(tmp_path, command, packages):
    assert found(tmp_path, "import mindspore\n", command=command) == packages
