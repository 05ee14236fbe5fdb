"""A control group with little memory, for programs that the kernel is to kill, or to spare."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_control_group(limit_bytes: int) -> Iterator[list[str]]:
    """Give a program that enters a group of version 1 with so much memory, and becomes the program that follows it.

    Skips the test where this user may make no such group.
    """
    own = next((one for one in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in one), "::/none")
    group = Path("/sys/fs/cgroup/memory") / own.split(":", 2)[2].lstrip("/") / f"ckptkit-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"this user may make no control group: {error}")
    (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()
