"""A MindSpore that nobody tried is named, with what may break in it."""

import re
from pathlib import Path

import mindspore as ms
from support.training import Mlp

import ckptkit as ck
from ckptkit.mindspore import versions

FOLDER = Path(versions.__file__).parent


def test_newer_version_is_named_once(caplog):
    for version, warns in {"2.7.1": 0, "2.10.0": 0, "2.10.1rc1": 0, "2.11.0": 1, "3.0": 1, "r3": 1}.items():
        caplog.clear()
        for _ in range(2):
            versions.warn_if_untried(version)
        assert caplog.text.count(f"MindSpore {version} is newer than") == warns, version
        assert ("train/cell.py" in caplog.text) == warns


def test_training_asks_for_the_version(caplog, monkeypatch):
    monkeypatch.setattr(versions, "NEWEST_TRIED", (2, 6))
    versions.warn_if_untried.cache_clear()  # as in a new process
    ck.StateManager(Mlp())
    assert f"MindSpore {ms.__version__} is newer than" in caplog.text


def test_every_use_of_private_attributes_is_listed():
    says = {
        str(path.relative_to(FOLDER))
        for path in FOLDER.rglob("*.py")
        if path.name != "versions.py" and re.search(r"\b[Pp]rivate\b", path.read_text())
    }
    assert says <= {*versions.PRIVATE}
    assert all((FOLDER / name).exists() for name in versions.PRIVATE)
