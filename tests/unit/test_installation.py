"""Beside the other distribution that has a package of this name, importing says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ckptkit


@pytest.mark.parametrize(
    ("beside", "is_refused"),
    [("ckptkit-0.3.0.dist-info", True), ("mindspore_ckptkit-0.1.0.dist-info", False), ("ckptkit-data", False)],
)
def test_other_package_of_the_same_name_is_refused(tmp_path: Path, beside: str, is_refused: bool) -> None:
    (tmp_path / beside).mkdir()
    (tmp_path / "ckptkit").mkdir()
    shutil.copy(ckptkit.__file__, tmp_path / "ckptkit")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "import ckptkit"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == is_refused, done.stderr
    assert ("pip uninstall -y ckptkit mindspore-ckptkit" in done.stderr) == is_refused
