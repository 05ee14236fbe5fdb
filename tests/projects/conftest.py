"""Installs the packages of the projects, each version once, without what they depend on."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a folder for PYTHONPATH with the packages; it is kept if ``CKPTKIT_PROJECTS`` names where."""
    kept = os.environ.get("CKPTKIT_PROJECTS")
    home = Path(kept).absolute() if kept else tmp_path_factory.mktemp("projects")

    def install(*requirements: str) -> Path:
        digest = hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:8]
        folder = home / f"{requirements[0]}-{digest}"
        if not (folder / "complete").exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"]
            subprocess.run([*pip, str(folder), *requirements], check=True, capture_output=True, text=True)
            (folder / "complete").touch()
        return folder

    return install
