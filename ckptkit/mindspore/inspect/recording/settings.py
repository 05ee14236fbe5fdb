"""Sets what may make two runs of a job equal.

Guarantees: lasts until the process ends; what was compiled or built before it stays as it is. Training thread only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import mindspore as ms
import mindspore.dataset as ds

from ckptkit.manager.hooks import Setting


def use_settings(settings: Sequence[Setting]) -> None:
    """Set what ``settings`` say."""
    for one in settings:
        if one == "pynative":
            ms.set_context(mode=ms.PYNATIVE_MODE)
            os.environ["MS_JIT"] = "0"  # functions under mindspore.jit, which would still run as graphs
        elif one == "deterministic":
            ms.set_context(deterministic="ON")
        elif one == "one thread":
            ms.set_context(runtime_num_threads=1)
        elif one == "one worker":
            ds.config.set_num_parallel_workers(1)
        else:
            ds.config.set_prefetch_size(1)
