"""Reads how many processes of this control group the kernel has killed for want of memory.

Guarantees: nothing but reading; a count that cannot be read is None. Any thread.
"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def oom_kills(root: Path = _ROOT, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return the count of the innermost readable group, of version 2 or 1.

    Args:
        root: Where the groups are mounted.
        own: Names the groups of this process.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files = [root / path.lstrip("/") / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            folder = root / "memory"
            files = [folder / path.lstrip("/") / "memory.oom_control", folder / "memory.oom_control"]
        else:
            continue
        for file in files:
            count = _count(file)
            if count is not None:
                return count
    return None


def _count(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.split()[:1] == ["oom_kill"] and len(line.split()) == 2]
    return int(found[0]) if found and found[0].isdigit() else None
