"""A power cut on a real ext4 loses nothing that was reported; `real_disks` does more of it, on more file systems."""

import pytest

from .real_disks import missing, show


@pytest.mark.extended
def test_real_file_system_keeps_what_was_reported(tmp_path):
    """Needs root, FUSE and loop devices; a job whose fsyncs do nothing is found out."""
    if reason := missing("ext4"):
        pytest.skip(reason)
    sound, careless = show("ext4", tmp_path, kills=1, most=40)
    assert sound.after_report > 20
    assert sound.wrong == []
    assert careless.wrong != []
