"""Files, folders, processes and databases that the steps depend on are named; what only logs is not."""

from __future__ import annotations

import os
import sys
import types

import pytest

from ckptkit.mindspore.observe.outside_inputs import Outside

SCRIPT = types.ModuleType("users_script")
exec(  # noqa: S102
    """
import os, sqlite3, subprocess, sys

def write(path, text="x", mode="w"):
    with open(path, mode) as file:
        file.write(text)

def read(path):
    with open(path) as file:
        return file.read()

def list_folder(path):
    return os.listdir(path)

def connect(path):
    sqlite3.connect(path).close()

def start(code):
    return subprocess.run([sys.executable, "-c", code], check=True)
""",
    vars(SCRIPT),
)


@pytest.fixture
def outside():
    listening = Outside()
    listening.begin()
    return listening


def status(path):
    SCRIPT.write(path, "1")
    SCRIPT.read(path)


@pytest.mark.parametrize(
    ("acts", "is_named"),
    [
        ([lambda path: SCRIPT.write(path, "1\n", "a")] * 3, False),  # a log
        ([status], True),
        ([SCRIPT.read] * 3, False),
        ([SCRIPT.read, lambda path: path.write_text("longer than before"), SCRIPT.read], True),  # another program's
        ([lambda path: SCRIPT.write(path, "1", "r+")], True),
    ],
)
def test_files_that_are_read_and_change_are_named(outside, tmp_path, acts, is_named):
    (tmp_path / "file").write_text("begin")
    for act in acts:
        act(tmp_path / "file")
    assert [*outside.changed()] == [("file", "file, written and read by the training")] * is_named


def test_a_folder_whose_files_change_is_named(outside, tmp_path):
    SCRIPT.list_folder(tmp_path)
    assert [*outside.changed()] == []
    SCRIPT.write(tmp_path / "new")
    SCRIPT.list_folder(tmp_path)
    assert [name for name, _ in outside.changed()] == [tmp_path.name]


def test_processes_and_databases_are_named(outside, tmp_path):
    SCRIPT.connect(str(tmp_path / "rows.db"))
    SCRIPT.start("")
    names = {why: name for name, why in outside.changed()}
    assert names["process"] == os.path.basename(sys.executable)
    assert names["connection"].endswith("rows.db")


def test_what_libraries_do_and_what_happens_before_is_not_noted(tmp_path):
    path, listening = tmp_path / "file", Outside()
    status(path)
    listening.begin()
    library = types.ModuleType("numpy.fake")
    exec("def touch(path):\n    open(path, 'w').close()\n    open(path).close()\n", vars(library))  # noqa: S102
    exec("def use(touch, path):\n    touch(path)\n", vars(mindspores := types.ModuleType("mindspore.fake")))  # noqa: S102
    mindspores.use(SCRIPT.read, path)
    library.touch(path)
    assert [*listening.changed()] == []


def test_an_error_in_the_users_code_goes_through_and_listening_goes_on(outside, tmp_path):
    with pytest.raises(FileNotFoundError):
        SCRIPT.read(tmp_path / "missing")
    status(tmp_path / "there")
    assert [name for name, _ in outside.changed()] == ["there"]


globals()["__name__"] = "ckptkit.tests"  # its frames are none of the user's; those of SCRIPT are
