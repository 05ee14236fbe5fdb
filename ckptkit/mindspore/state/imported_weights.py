"""Handles a checkpoint from `ckptkit.tools.interchange.import_weights`, which holds initial weights only.

Guarantees: compares before anything is changed, and names the first leaves that do not fit. Pure functions, except
that they log; main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from ckptkit.core.contents import IMPORTED, NOT_IMPORTED, Contents
from ckptkit.core.tensors import Leaf
from ckptkit.core.text import listed
from ckptkit.errors import StateMismatchError
from ckptkit.mindspore.state.compatibility import difference, some

_log = logging.getLogger("ckptkit")


def holds_weights_only(contents: Contents) -> bool:
    """Return whether everything except the weights begins afresh."""
    return IMPORTED in contents.state


def check_weights(contents: Contents, leaves: Mapping[str, Leaf], wanted: Collection[str]) -> None:
    """Raise StateMismatchError, naming the first leaves, unless the checkpoint gives exactly what is ``wanted``.

    Args:
        contents: Contents of the imported checkpoint.
        leaves: Leaves of this training.
        wanted: Names of the leaves that are weights; stored values of other leaves are ignored.
    """
    found = contents.entries.keys()
    problems = [f"not imported, but in this training: {name}" for name in sorted(set(wanted) - found)]
    problems += [f"imported, but not in this training: {name}" for name in sorted(found - leaves.keys())]
    for name in sorted(found & set(wanted)):
        problem = difference(name, leaves[name], contents.entries[name])
        if problem is not None:
            problems.append(problem)
    if problems:
        raise StateMismatchError(
            f"the weights of {contents.checkpoint}, imported from {_record(contents)['file']}, do not fit this "
            "training. Nothing was changed. Import them once more into another root, with --rename OLD=NEW for names "
            f"that differ and --drop NAME for what is not wanted:{listed(problems)}"
        )


def tell_what_is_fresh(contents: Contents, leaves: Mapping[str, Leaf], wanted: Collection[str]) -> None:
    """Log what the import gives and what it does not."""
    taken = contents.entries.keys() & set(wanted)
    _log.info(
        "beginning with the weights of %s, imported from %s: %d parameters. Not in it, and begun afresh: %s",
        *(contents.checkpoint, _record(contents)["file"], len(taken), ", ".join(NOT_IMPORTED)),
    )
    as_built = sorted(name for name in leaves.keys() - set(wanted) if leaves[name].role == "weights")
    if as_built:
        _log.info("in this training, but not imported, and as they were built: %s", some(as_built))
    ignored = sorted((contents.entries.keys() & leaves.keys()) - taken)
    if ignored:
        _log.info("imported, but no weights of this training, and ignored: %s", some(ignored))


def _record(contents: Contents) -> Mapping[str, Any]:
    record = contents.state[IMPORTED]
    return record if isinstance(record, dict) and "file" in record else {"file": "a file"}
