"""Implements ``ckptkit flush``: uploads the newest checkpoint of a root whose training has died to its mirrors.

The JSON is ``{"root": str, "mirrors": [...]}`` with the fields of `ckptkit.tools.copy.flush.Flushed`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from ckptkit.cli.errors import WrongUsageError, complain
from ckptkit.cli.storage_option import open_root
from ckptkit.cli.text import print_json, visible
from ckptkit.errors import CkptKitError
from ckptkit.tools.copy.flush import flush

_ENDS = {
    "uploaded": "is uploaded to",
    "present": "was already at",
    "void": "can no longer be stored at",
}


def run_flush(
    root: str, mirrors: Sequence[str], *, root_options: Iterable[str], mirror_options: Iterable[str], as_json: bool
) -> int:
    """Upload and print the outcomes; returns the exit code.

    Raises:
        WrongUsageError: If an option is invalid.
        CkptKitError: As `ckptkit.tools.copy.flush.flush`.
    """
    here = open_root(root, root_options)
    there = [open_root(mirror, mirror_options, flag="--mirror-option", writes=True) for mirror in mirrors]
    try:
        found = flush(here, there)
    except CkptKitError:
        raise
    except ValueError as error:
        raise WrongUsageError(str(error)) from error
    if as_json:
        print_json({"root": here.url, "mirrors": [dataclasses.asdict(one) for one in found]})
    for one in found:
        if one.outcome == "failed":
            complain(f"{one.checkpoint} could not be uploaded to {one.mirror}: {one.why}")
        elif not as_json:
            print(visible(f"{one.checkpoint} {_ENDS[one.outcome]} {one.mirror}"))
    return int(any(one.outcome in {"failed", "void"} for one in found))
