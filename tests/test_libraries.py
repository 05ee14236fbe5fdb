"""A start under another version of what computes says so, and goes on."""

from __future__ import annotations

import logging
from importlib import metadata

import pytest
from grown import WatchedRun, grow

from ckptkit.manager import CheckpointManager


def warnings_of_start(root, caplog) -> list[str]:
    caplog.clear()
    run = WatchedRun()
    CheckpointManager(root).restore(run)
    assert len(run.applied) == 1
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("library", ["mindspore", "numpy"])
def test_other_library_version_warns_with_install_command(root, caplog, monkeypatch, library):
    version = metadata.version
    with monkeypatch.context() as old:
        old.setattr(metadata, "version", lambda name: "1.2.3" if name == library else version(name))
        (name,) = grow(root, 3)
    (warning,) = warnings_of_start(root, caplog)
    assert warning.startswith(f"{name} was written under {library} 1.2.3, and this is {version(library)}: ")
    assert warning.endswith(f"pip install {library}=={'1.2.3'}")


def test_same_versions_give_no_warning(root, caplog, monkeypatch):
    """Another version of ckptkit gives none either."""
    version = metadata.version
    with monkeypatch.context() as old:
        old.setattr(metadata, "version", lambda name: "0.0.1" if name == "ckptkit" else version(name))
        grow(root, 3)
    assert warnings_of_start(root, caplog) == []
