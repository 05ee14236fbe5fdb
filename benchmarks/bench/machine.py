"""What a run ran on, for whoever reads its figures."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from .measurement import CHECKOUT


def describe(workdir: Path, arguments: Sequence[str]) -> dict[str, str]:
    """By name, in the order in which they are printed."""
    return {
        "command": shlex.join(["python", "-m", "benchmarks.bench", *arguments]),
        "begun": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "checkout": _output("git", "-C", str(CHECKOUT), "describe", "--always", "--dirty") or "not a checkout",
        "versions": ", ".join(
            [f"Python {platform.python_version()}", *map(_version, ("mindspore", "numpy", "xxhash"))]
        ),
        "processor": f"{_field('/proc/cpuinfo', 'model name')}, {len(os.sched_getaffinity(0))} cores usable",
        "memory": _field("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release()}, {_file_system(workdir)}",
        "load before": ", ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _version(name: str) -> str:
    return f"{name} {metadata.version(name)}"


def _field(path: str, name: str) -> str:
    lines = Path(path).read_text().splitlines() if sys.platform == "linux" else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "unknown")


def _file_system(path: Path) -> str:
    return _output("stat", "--file-system", "--format", "%T", str(path)) or "unknown file system"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""
