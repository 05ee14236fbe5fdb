"""Holds back a callback's wish to stop, until all ranks have agreed on it.

`Model` looks at the wish after every micro-step and stops at once, in this rank alone; the others would wait for it in
their next collective until that fails. Main thread only.
"""

from __future__ import annotations

from typing import Any


def hold_back(run_context: Any) -> bool:
    """Take away the wish to stop, if there is one, and say whether there was.

    Raises:
        AttributeError: If MindSpore keeps it elsewhere by now.
    """
    wished = bool(run_context.get_stop_requested())
    if wished:
        # Private: RunContext has a method to wish and one to ask, none to take back. Where this attribute has moved,
        # get_stop_requested still says yes below.
        run_context._stop_requested = False
        if run_context.get_stop_requested():
            raise AttributeError(
                "MindSpore's RunContext keeps its stop request in another place than ckptkit knows; do not call "
                "request_stop in a job of several ranks with this version of MindSpore"
            )
    return wished
