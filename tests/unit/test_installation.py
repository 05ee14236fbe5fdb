"""Beside the other distribution that has a package of this name, importing says what to do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import ckptkit


def test_other_package_of_the_same_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ckptkit").mkdir()
    shutil.copy(ckptkit.__file__, tmp_path / "ckptkit")
    for beside in ("mindspore_ckptkit-0.1.0.dist-info", "ckptkit-data", "ckptkit-0.3.0.dist-info"):
        (tmp_path / beside).mkdir()
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-c", "import ckptkit"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        is_refused = beside.startswith("ckptkit-0")
        assert (done.returncode != 0) == is_refused, done.stderr
        assert ("pip uninstall -y ckptkit mindspore-ckptkit" in done.stderr) == is_refused
