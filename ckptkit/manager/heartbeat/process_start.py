"""Tells when this process was born, and on which boot of the host, so that the times of lives can be compared.

Guarantees: the monotonic clock of `time.monotonic` is one for all processes of a boot, and nobody sets it. Where the
system does not tell, the answer is None. Any thread.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

_BIRTH = 19  # place of the start time among the numbers after the name in /proc/self/stat, in ticks


def boot_id() -> str | None:
    """Return what identifies the boot of this host; None if the system does not tell."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if re.fullmatch(r"[0-9a-f-]{1,64}", text) else None


def process_start() -> float | None:
    """Return when this process was born, by `time.monotonic`; None if the system does not tell."""
    try:
        numbers = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        seconds = int(numbers[_BIRTH]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - seconds
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.monotonic() - max(0.0, age)
