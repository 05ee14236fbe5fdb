"""Begins a run afresh: with the parameters as they are, or with imported weights.

Guarantees: everything is compared before anything is changed, and what does not fit is named. A process begins no run
with parameters that it has trained since it began the same run with them: the mark is on the tensors themselves, so
any object that wraps them again finds it. Main thread only, between two micro-steps.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np

from ckptkit.core.contents import IMPORTED, NOT_IMPORTED, Contents
from ckptkit.core.tensors import Leaf
from ckptkit.core.text import listed, some
from ckptkit.errors import ResumeError, StateMismatchError
from ckptkit.mindspore.data.pipeline import has_own_data
from ckptkit.mindspore.data.pipeline_position import DatasetPosition
from ckptkit.mindspore.kernel_threads import take_denormals_as_zero_everywhere
from ckptkit.mindspore.parameters.parameters import CellParameters
from ckptkit.mindspore.rng import seed_operators, words_drawn_unseeded
from ckptkit.mindspore.state.examination import Examination
from ckptkit.mindspore.state.holders import state_of
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks
from ckptkit.mindspore.state.restore import difference, watch_forward
from ckptkit.mindspore.state.sources import Sources
from ckptkit.mindspore.train.cell import (
    clear_half_restored,
    half_restored_from,
    mark_half_restored,
    refuse_half_restored,
)

_log = logging.getLogger("ckptkit")

_MARK = "_ckptkit_begun"


def holds_weights_only(contents: Contents) -> bool:
    """Return whether everything except the weights begins afresh, as after `ckptkit.tools.interchange`'s import."""
    return IMPORTED in contents.state


def begin_afresh(sources: Sources, examination: Examination, root: str) -> None:
    """Begin the run at ``root`` with the parameters as they are; see `StateManager.begin`."""
    refuse_half_restored(sources.every_cell())
    _refuse_used(sources, "there is no checkpoint to resume", root)
    _judge(sources, examination)
    _prepare(sources, root)


def begin_with_weights(sources: Sources, examination: Examination, contents: Contents) -> None:
    """Begin a run with the imported weights of ``contents``; all else is as in `begin_afresh`."""
    half = half_restored_from(sources.every_cell())
    if half not in (None, contents.checkpoint):
        raise ResumeError(
            f"{half} is corrupt, and reading it has changed the optimizer's state. {contents.checkpoint}, from "
            "which the run would begin again, holds imported weights only and cannot restore that state. Start the "
            f'process again with checkpoint="{contents.checkpoint}", rewind=True'
        )
    _refuse_used(sources, f"{contents.checkpoint} holds imported weights only, to begin with", contents.root)
    seen = {leaf.name: leaf for leaf in sources.parameters.leaves(at_boundary=False)}
    wanted = sources.parameters.importable(contents)
    _check_weights(contents, seen, wanted)
    _judge(sources, examination)
    sources.cycle_start = None
    sources.counting.fence()
    mark_half_restored(sources.every_cell(), contents.checkpoint)
    if sources.shared_memory.part(partial(_are_unlike, contents, seen)):
        seen = {leaf.name: leaf for leaf in sources.parameters.leaves(at_boundary=False)}
    sources.parameters.read_weights_from(contents, seen)
    clear_half_restored(sources.every_cell())
    _tell_what_is_fresh(contents, seen, wanted)
    _prepare(sources, contents.root)


def _refuse_used(sources: Sources, why: str, root: str) -> None:
    """Raise ResumeError if a cell was called, or parameters changed since this process began the run at ``root``."""
    others = (named_cell.cell.counters.micro_steps for named_cell in sources.named_cells.values())
    called = max(sources.progress().batches_delivered, *others, 0)
    if called:
        raise ResumeError(
            f"{why}, but the train cell was called {called} times already. "
            "Build a new one for another run, or give the root of the run that it belongs to."
        )
    marks = {name: vars(tensor).get(_MARK) for name, tensor in sources.parameters.tensors().items()}
    begun = {name: mark[1] for name, mark in marks.items() if mark is not None and mark[0] == root}
    digests = sources.parameters.digests() if begun else {}
    changed = sorted(name for name, digest in begun.items() if digests.get(name) != digest)
    if changed:
        raise ResumeError(
            f"{root} holds no checkpoint of what this process trained there before, and {some(changed)} "
            "changed since: a run cannot start afresh with trained parameters. Build network, optimizer and "
            "model anew (in a notebook, run their cells again), then start"
        )


def _judge(sources: Sources, examination: Examination) -> None:
    examination.judge()
    examination.judge_doubt(_unseeded_draws(sources))
    examination.note_start(None)
    examination.load(None)


def _prepare(sources: Sources, root: str) -> None:
    _mark_begun(sources.parameters, root)
    take_denormals_as_zero_everywhere()
    seed_operators()
    if sources.position is not None and not sources.prepared:
        sources.position.prepare(0, None)
    sources.prepared = True
    sources.parameters.note_buffers()
    sources.note_beginning(resumes=False)
    for switches in sources.switches():
        switches.load(None, 0)
    watch_forward(sources.cell, sources.parameters)


def _mark_begun(parameters: CellParameters, root: str) -> None:
    digests = parameters.digests()
    for name, tensor in parameters.tensors().items():
        vars(tensor)[_MARK] = (root, digests[name])


def _unseeded_draws(sources: Sources) -> str | None:
    """Return a warning if NumPy's generator, never seeded, has given more than what MindSpore and the named state need.

    MindSpore's initializers take two words for each parameter, NumPy's distributions one to three for each number.
    Weights that the script draws itself are warned of as well: their draws do not differ from those of data.
    """
    words, position = words_drawn_unseeded(), sources.position
    if words == 0 or (isinstance(position, DatasetPosition) and not has_own_data(position.dataset)):
        return None
    states = [state_of(holder) for holder in sources.stateful.values() if not isinstance(holder, OtherCallbacks)]
    states += [sources.loader.state_dict()] if sources.loader is not None else []
    if words <= 4 * len(sources.tensors()) + 3 * _numbers(states):
        return None
    return (
        "numpy.random was never seeded, and more was drawn from it than MindSpore's initializers need. If these are "
        "data, their split or their order, each start has others, and a resume is refused or differs: call "
        "ms.set_seed(...) before anything is drawn"
    )


def _numbers(state: Any) -> int:
    if isinstance(state, (Mapping, list, tuple)):
        return sum(map(_numbers, state.values() if isinstance(state, Mapping) else state))
    return int(state.size) if isinstance(state, (np.ndarray, ms.Tensor)) else 1


def _are_unlike(contents: Contents, leaves: Collection[str], names: Collection[str]) -> bool:
    """Return whether some of ``names`` that are ``leaves`` of the cells are to have other bits than the rest."""
    own = [name for name in names if name in leaves]  # a file of weights has nothing for objects given by name
    return len({contents.peek(name).tobytes() if name in contents.entries else None for name in own}) > 1


def _check_weights(contents: Contents, leaves: Mapping[str, Leaf], wanted: Collection[str]) -> None:
    """Raise StateMismatchError, naming the first leaves, unless the checkpoint gives exactly what is ``wanted``.

    These are the weights among ``leaves``; stored values of the others are ignored.
    """
    imported = contents.entries.keys()
    problems = [f"not imported, but in this training: {name}" for name in sorted(set(wanted) - imported)]
    problems += [f"imported, but not in this training: {name}" for name in sorted(imported - leaves.keys())]
    differences = (difference(name, leaves[name], contents.entries[name]) for name in sorted(imported & set(wanted)))
    problems += filter(None, differences)
    if problems:
        raise StateMismatchError(
            f"the weights of {contents.checkpoint}, imported from {_file_of(contents)}, do not fit this "
            "training. Nothing was changed. Import them once more into another root, with --rename OLD=NEW for "
            f"names that differ and --drop NAME for names to leave out:{listed(problems)}"
        )


def _tell_what_is_fresh(contents: Contents, leaves: Mapping[str, Leaf], wanted: Collection[str]) -> None:
    taken = contents.entries.keys() & set(wanted)
    _log.info(
        "beginning with the weights of %s, imported from %s: %d parameters. Not in it, and begun afresh: %s",
        *(contents.checkpoint, _file_of(contents), len(taken), ", ".join(NOT_IMPORTED)),
    )
    as_built = sorted(name for name in leaves.keys() - set(wanted) if leaves[name].role == "weights")
    if as_built:
        _log.info("in this training, but not imported; they keep their initial values: %s", some(as_built))
    ignored = sorted((contents.entries.keys() & leaves.keys()) - taken)
    if ignored:
        _log.info("imported, but not weights of this training, and ignored: %s", some(ignored))


def _file_of(contents: Contents) -> str:
    record = contents.state[IMPORTED]
    return str(record["file"]) if isinstance(record, dict) and "file" in record else "a file"
