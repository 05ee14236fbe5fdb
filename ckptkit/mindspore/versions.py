"""Warns of a version of MindSpore that is newer than those with which ckptkit was tried, and names the device.

One warning in a process. An older version cannot be installed beside ckptkit. Any thread.
"""

from __future__ import annotations

import functools
import logging
import re

import mindspore as ms

_log = logging.getLogger("ckptkit")

NEWEST_TRIED = (2, 10)
# Each touches what MindSpore does not document, in one place, with a comment that says what tells if it moved.
PRIVATE: tuple[str, ...] = ("callback/session.py", "kernel_threads.py", "rng.py")
PRIVATE += ("observe/random_operators.py", "observe/value_kinds.py", "observe/path_lookup.py")
PRIVATE += ("parameters/apply.py", "parameters/memory.py")
PRIVATE += ("state/digest.py", "state/sources.py", "train/cell.py", "train/micro_steps.py")


@functools.cache
def warn_if_untried(version: str = ms.__version__) -> None:
    """Warn if ``version`` of MindSpore is newer than the newest that was tried."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or tuple(map(int, numbers.groups())) > NEWEST_TRIED:
        _log.warning(
            "MindSpore %s is newer than any version that ckptkit was tried with (up to %d.%d). A resume may not be "
            "exact, or fail. Examine your script first: ckptkit doctor -- python train.py. What depends on MindSpore's "
            "private attributes, in ckptkit/mindspore: %s",
            *(version, *NEWEST_TRIED, ", ".join(PRIVATE)),
        )


def device_name() -> str:
    """Return the name of the device that computes, such as Ascend910B4; CPU for any processor."""
    return str(ms.hal.get_device_name(ms.get_context("device_id"), ms.get_context("device_target")))
