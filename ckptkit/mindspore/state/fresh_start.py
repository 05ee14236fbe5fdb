"""Refuses a fresh start with parameters that this process has trained since it began the same run with them.

Guarantees: the mark is on the tensors themselves, so any object that wraps them again finds it. A start of the same
root is refused if a tensor's bits changed. It checks only at fresh starts and holds no copies. Main thread only.
"""

from __future__ import annotations

from ckptkit.errors import ResumeError
from ckptkit.mindspore.parameters.parameters import CellParameters
from ckptkit.mindspore.state.compatibility import some

_MARK = "_ckptkit_begun"


def mark_begun(parameters: CellParameters, root: str) -> None:
    """Mark that the run at ``root`` begins with ``parameters`` as they are."""
    digests = parameters.digests()
    for name, one in parameters.tensors().items():
        vars(one)[_MARK] = (root, digests[name])


def refuse_trained(parameters: CellParameters, root: str) -> None:
    """Raise ResumeError if ``parameters`` are marked for ``root`` and one of them has changed since; names some."""
    marks = {name: vars(one).get(_MARK) for name, one in parameters.tensors().items()}
    begun = {name: mark[1] for name, mark in marks.items() if mark is not None and mark[0] == root}
    if not begun:
        return
    digests = parameters.digests()
    changed = sorted(name for name, digest in begun.items() if digests.get(name) != digest)
    if changed:
        raise ResumeError(
            f"{root} holds no checkpoint of what this process trained there before, and {some(changed)} "
            "changed since: a run cannot start afresh with trained parameters. Build network, optimizer and "
            "model anew (in a notebook, run their cells again), then start"
        )
