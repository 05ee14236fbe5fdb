"""A start under another version of what computes says so, and goes on."""

from importlib import metadata

import pytest
from support.runs.grown import WatchedRun, grow, opened

from ckptkit.format import versions
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage

INSTALL, UNSURE = "pip install {}==1.2.3", "may not continue with the same bits"


@pytest.mark.parametrize(
    ("library", "version", "end"),
    [
        *(("mindspore", "1.2.3", INSTALL), ("numpy", "1.2.3", INSTALL), ("mindspore", versions.UNKNOWN, UNSURE)),
        ("mindspore-ckptkit", None, None),  # found by ``PYTHONPATH``; another version of it gives no warning
    ],
)
def test_other_library_version_warns_with_install_command(root, caplog, library, version, end):
    installed = metadata.version

    def recorded(name):
        if name == library and version is None:
            raise metadata.PackageNotFoundError(name)
        return version if name == library else installed(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "version", recorded)
        versions.versions.cache_clear()
        (name,) = grow(root, 3)
    versions.versions.cache_clear()
    libraries = opened(LocalStorage(root), name).manifest.libraries
    assert libraries[library.removeprefix("mindspore-")] == version or libraries["ckptkit"] == versions.UNKNOWN
    caplog.clear()
    CheckpointManager(root).restore(run := WatchedRun())
    assert len(run.applied) == 1
    if version is None:
        assert caplog.text == ""
        return
    (warning,) = caplog.messages
    assert warning.startswith(f"{name} was written with {library} {version}, but this is {installed(library)}: ")
    assert warning.endswith(end.format(library))
