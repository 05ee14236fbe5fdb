"""A user's script with something changed in it, run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TRAIN = Path(__file__).with_name("train.py")


@dataclass(frozen=True)
class Outcome:
    """How a script ended.

    Attributes:
        code: Its exit code.
        said: What it wrote to stderr, without what MindSpore logs.
    """

    code: int
    said: str


def write(folder: Path, *changes: tuple[str, str], before: Path = TRAIN) -> Path:
    """Write ``train.py`` into ``folder``, with each first text of ``changes`` replaced by the second."""
    text = before.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    return script


def run(folder: Path, *changes: tuple[str, str], **environment: str) -> Outcome:
    """Write the script into ``folder`` and run it there."""
    script = write(folder, *changes)
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=folder,
        env={**os.environ, "GLOG_v": "3", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Outcome(done.returncode, done.stderr)
