"""A start under another version of what computes says so, and goes on."""

from __future__ import annotations

import logging
from importlib import metadata

import pytest
from support.runs.grown import WatchedRun, grow, opened

from ckptkit.format import versions
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage


def grown_with(root, **changed: str) -> str:
    """The name of a checkpoint by a process that has other versions of some libraries."""
    version = metadata.version
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: changed.get(name) or version(name))
        versions.versions.cache_clear()
        (name,) = grow(root, 3)
    versions.versions.cache_clear()
    return name


def warnings_of_start(root, caplog) -> list[str]:
    caplog.clear()
    run = WatchedRun()
    CheckpointManager(root).restore(run)
    assert len(run.applied) == 1
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("library", ["mindspore", "numpy"])
def test_other_library_version_warns_with_install_command(root, caplog, library):
    name = grown_with(root, **{library: "1.2.3"})
    (warning,) = warnings_of_start(root, caplog)
    assert warning.startswith(f"{name} was written with {library} 1.2.3, but this is {metadata.version(library)}: ")
    assert warning.endswith(f"pip install {library}==1.2.3")


def test_unknown_version_warns_without_install_command(root, caplog):
    name = grown_with(root, mindspore=versions.UNKNOWN)
    (warning,) = warnings_of_start(root, caplog)
    assert warning.startswith(f"{name} was written with mindspore of an unknown version, but this is ")
    assert warning.endswith("may not continue with the same bits")


def test_save_needs_no_installed_package(root, monkeypatch, caplog):
    """Such as a ckptkit that is found by ``PYTHONPATH``; another version of ckptkit gives no warning."""
    distribution = metadata.distribution

    def installed(name):
        if name == "mindspore-ckptkit":
            raise metadata.PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(metadata, "distribution", installed)
    name = grown_with(root)
    recorded = opened(LocalStorage(root), name).manifest.libraries
    assert recorded["ckptkit"] == "of an unknown version"
    assert recorded["numpy"] == metadata.version("numpy")
    monkeypatch.undo()
    assert warnings_of_start(root, caplog) == []
