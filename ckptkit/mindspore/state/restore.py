"""Starts a training: restores a checkpoint into its sources, or begins with the parameters as they are.

Guarantees: everything is compared before anything is changed; a disagreement raises and names what differs. While
parameters are read, their cells are marked as half restored. A user's object that is unchanged after it was given its
state, and differs from it, is refused, unless it may take the state over later: a loader at its next iteration, a
callback at the beginning of the training. Any other difference is reported, except values that also differ between two
reads, such as a clock. With another number of ranks, ranks x accumulation steps x micro-batch stays the same. A process
begins no run with parameters that it has trained since it began the same run with them: the mark is on the tensors
themselves, so any object that wraps them again finds it. Does not choose the checkpoint, and reads no file except
through `Contents`. Main thread only, between two micro-steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np

from ckptkit.checkpoint.resharded import folded
from ckptkit.core.contents import IMPORTED, NOT_IMPORTED, Contents, TensorInfo
from ckptkit.core.placement import Box
from ckptkit.core.process_group import World
from ckptkit.core.tensors import Leaf, bits_of, digest_of_bits
from ckptkit.core.text import listed, some
from ckptkit.errors import ResumeError, StateMismatchError
from ckptkit.mindspore.data.pipeline_nodes import has_own_data
from ckptkit.mindspore.data.pipeline_position import DatasetPosition
from ckptkit.mindspore.kernel_threads import take_denormals_as_zero_everywhere
from ckptkit.mindspore.parameters.apply import can_be_live, mode_in_force
from ckptkit.mindspore.rng import restore_rng, seed_operators, words_drawn_unseeded
from ckptkit.mindspore.state.digest import differing, digests_by_place
from ckptkit.mindspore.state.findings import Examination
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks
from ckptkit.mindspore.state.sources import Sources, decoded
from ckptkit.mindspore.state.stateful_objects import GeneratorHolder, ParameterHolder, Stateful, load_checked, state_of
from ckptkit.mindspore.train.call_hooks import before_next_call
from ckptkit.mindspore.train.cell import (
    OPTIMIZERS,
    AccumulationTrainCell,
    clear_half_restored,
    half_restored_from,
    mark_half_restored,
    refuse_half_restored,
)
from ckptkit.mindspore.train.restored_k import Worlds

_log = logging.getLogger("ckptkit")

_NETWORK = "Build network and optimizer as they were"
_OPTIMIZER = "The weights fit, so build the optimizer as it was"
_RATES = (
    "Only learning rates differ: give the list that the run began with, and train the epochs that it is for. To train "
    "longer, begin a run with these weights (`ckptkit export`, `ckptkit import`); a rate that is a cell, such as "
    "nn.CosineDecayLR, is not stored and may change. Do so"
)
_BEGUN = "_ckptkit_begun"


class Start:
    """Restores or begins the training of ``sources``, and undoes what the script changes between that and its loop.

    With ``elastic``, a checkpoint of another number of ranks is converted.
    """

    def __init__(self, sources: Sources, examination: Examination, *, elastic: bool) -> None:
        self._sources = sources
        self._examination = examination
        self._elastic = elastic
        self._built_rates = sources.rates
        self._restored: Contents | None = None
        self._rng: dict[str, Any] | None = None
        self._shared: Sequence[Sequence[str]] = ()

    def restore(self, contents: Contents, world: World) -> None:
        """Restore ``contents``, those of the rank of the checkpoint that this one of ``world`` takes over.

        If they are imported weights, all else begins afresh. See `StateManager.apply` for the errors.
        """
        if IMPORTED in contents.state:
            self._begin_with_weights(contents)
            return
        sources, stored, state = self._sources, contents, decoded(contents)
        contents = self._in_this_world(contents, state, world)
        seen = self._leaves()
        worlds = Worlds(contents.world_size, world.size, state["train"]["first_world"])
        is_folded = worlds.before != worlds.now
        self._compare(contents, state, seen, worlds)
        left = sources.counting.check(contents, state["train"], worlds if self._elastic else None)
        self._examination.judge()
        self._examination.judge_doubt(sources.numerics.doubt(state["train"]["numerics"]))
        self._examination.note_start(state["train"]["arrays"] or {}, None if is_folded else state["observed"])
        # From here on, something is changed.
        take_denormals_as_zero_everywhere()
        sources.cycle_start = None
        self._restored = None
        sources.counting.fence()
        mark_half_restored(sources.every_cell, contents.checkpoint)
        recorded = state["train"]["shared_memory"]
        self._shared = sources.shared_memory.groups() if recorded is None else recorded
        if sources.shared_memory.restore(self._shared):
            seen = self._leaves()
        sources.parameters.read_from(contents, seen)
        progress = contents.progress
        sources.ended = state["train"]["ended"]
        if sources.position is not None:
            sources.position.prepare(progress.batches_delivered, state["data"])
        sources.prepared = True
        self._restore_objects(contents, state["user"], partial(self._give, state["user"]))
        sources.first_world = worlds.first
        # Last: a foreign cell may count in one of those objects.
        sources.counting.load(progress, state["train"], left)
        sources.load_switches(state["train"]["switches"], progress.batches_delivered)
        clear_half_restored(sources.every_cell)
        if is_folded and state["observed"] and (paths := [path for path, *_ in state["observed"]["slots"]]):
            ranks = f"kept by each of {worlds.before} ranks, and not put back in {worlds.now}"
            self._examination.judge_doubt(f"{some(paths)}: {ranks}. Set it from what restore() returns")
        self._keep_rates(state["train"]["rates"])
        self._rng = state["rng"]
        restore_rng(self._rng)
        self._restored = contents
        if is_folded:
            _tell_what_was_folded(stored, contents, worlds, world.rank, positioned=sources.position is not None)
        sources.parameters.note_buffers()
        self._watch_calls(progress.updates, self._judge_changes if sources.position is None else None)

    def begin(self, root: str) -> None:
        """Begin the run at ``root`` with the parameters as they are; see `StateManager.begin`."""
        refuse_half_restored(self._sources.every_cell)
        self._refuse_used("there is no checkpoint to resume", root)
        self._judge_beginning()
        self._prepare(root)

    def _begin_with_weights(self, contents: Contents) -> None:
        """Begin a run with the imported weights of ``contents``; all else is as in `begin`."""
        sources = self._sources
        half = half_restored_from(sources.every_cell)
        if half not in (None, contents.checkpoint):
            raise ResumeError(
                f"{half} is corrupt, and reading it has changed the optimizer's state. {contents.checkpoint}, from "
                "which the run would begin again, holds imported weights only and cannot restore that state. Start the "
                f'process again with checkpoint="{contents.checkpoint}", rewind=True'
            )
        self._refuse_used(f"{contents.checkpoint} holds imported weights only, to begin with", contents.root)
        leaves, wanted = self._leaves(), sources.parameters.importable(contents)
        imported: Any = contents.state[IMPORTED]
        file = imported.get("file", "a file") if isinstance(imported, dict) else "a file"
        # Stored values of others than the weights among `leaves` are ignored.
        stored = {name: info for name, info in contents.entries.items() if name in wanted or name not in leaves}
        words = "not imported, but in this training", "imported, but not in this training"
        problems = _problems({name: leaves[name] for name in wanted}, stored, *words)
        if problems:
            raise StateMismatchError(
                f"the weights of {contents.checkpoint}, imported from {file}, do not fit this training. Nothing was "
                "changed. Import them once more into another root, with --rename OLD=NEW for names that differ and "
                f"--drop NAME for names to leave out:{listed([line for *_, line, _ in problems])}"
            )
        self._judge_beginning()
        sources.cycle_start = None
        sources.counting.fence()
        mark_half_restored(sources.every_cell, contents.checkpoint)
        if sources.shared_memory.part(partial(_have_unlike_bits, contents, leaves)):
            leaves = self._leaves()
        sources.parameters.read_weights_from(contents, leaves)
        clear_half_restored(sources.every_cell)
        as_built = sorted(name for name in leaves.keys() - set(wanted) if leaves[name].role == "weights")
        ignored = sorted((contents.entries.keys() & leaves.keys()) - set(wanted))
        _log.info(
            "beginning with the weights of %s, imported from %s: %d parameters. Not in it, and begun afresh: %s",
            *(contents.checkpoint, file, len(stored), ", ".join(NOT_IMPORTED)),
        )
        if as_built:
            _log.info("in this training, but not imported; they keep their initial values: %s", some(as_built))
        if ignored:
            _log.info("imported, but not weights of this training, and ignored: %s", some(ignored))
        self._prepare(contents.root)

    def undo_changes(self) -> list[str]:
        """Undo changes to the state since `restore`; does nothing without it, or after `trained`.

        Reads again only those files of the checkpoint whose tensors were changed, where that can be detected. If that
        fails, the parameters are half restored. Returns the names of the parameters that were seen to be changed.
        """
        if self._restored is None:
            return []
        sources = self._sources
        sources.counting.fence()
        mark_half_restored(sources.every_cell, self._restored.checkpoint)
        sources.parameters.leaves(at_boundary=False)  # looks where the parameters are now
        sources.shared_memory.restore(self._shared)
        changed = sources.parameters.read_again_from(self._restored)
        user = decoded(self._restored)["user"]

        def give(name: str, stateful: Stateful) -> None:
            # A loader that takes its state when it is iterated next would take it twice.
            if digests_by_place(stateful.state_dict()) != digests_by_place(user[name]):
                stateful.load_state_dict(user[name])

        self._restore_objects(self._restored, user, give)
        clear_half_restored(sources.every_cell)
        sources.put_back()
        self.random_state()
        return changed

    def random_state(self) -> None:
        """Restore the random state of `restore`, except what the data has positioned; does nothing without it."""
        if self._rng is not None:
            position = self._sources.position
            restore_rng(self._rng, keep=position.own_draws if position else ())

    def trained(self) -> None:
        """Leave the state to the loop; `undo_changes` has nothing to do from now on."""
        self._restored = None
        for switches in self._sources.switches:
            switches.trained()

    def _refuse_used(self, why: str, root: str) -> None:
        """Raise ResumeError if a cell was called, or parameters changed since this process began ``root``'s run."""
        sources = self._sources
        others = (named_cell.cell.counters.micro_steps for named_cell in sources.named_cells.values())
        called = max(sources.progress().batches_delivered, 0, *others)
        if called:
            raise ResumeError(
                f"{why}, but the train cell was called {called} times already. "
                "Build a new one for another run, or give the root of the run that it belongs to."
            )
        marks = {name: vars(tensor).get(_BEGUN) for name, tensor in sources.parameters.tensors().items()}
        begun = {name: mark[1] for name, mark in marks.items() if mark is not None and mark[0] == root}
        digests = sources.parameters.digests() if begun else {}
        changed = differing(begun, digests)
        if changed:
            raise ResumeError(
                f"{root} holds no checkpoint of what this process trained there before, and {some(changed)} "
                "changed since: a run cannot start afresh with trained parameters. Build network, optimizer and "
                "model anew (in a notebook, run their cells again), then start"
            )

    def _judge_beginning(self) -> None:
        self._examination.judge()
        self._examination.judge_doubt(_unseeded_draws(self._sources))
        self._examination.note_start(None, None)

    def _prepare(self, root: str) -> None:
        sources = self._sources
        self._restored = self._rng = None  # of another run, before its first batch
        digests = sources.parameters.digests()
        for name, tensor in sources.parameters.tensors().items():
            vars(tensor)[_BEGUN] = (root, digests[name])
        take_denormals_as_zero_everywhere()
        seed_operators()
        if sources.position is not None and not sources.prepared:
            sources.position.prepare(0, None)
        sources.prepared = True
        sources.parameters.note_buffers()
        for switches in sources.switches:
            switches.load(None, 0)
        self._watch_calls(0)

    def _leaves(self) -> dict[str, Leaf]:
        return {leaf.name: leaf for leaf in self._sources.parameters.leaves(at_boundary=False)}

    def _in_this_world(self, contents: Contents, state: dict[str, Any], world: World) -> Contents:
        """Return ``contents`` converted for this rank of ``world``; converts the data position in ``state`` too."""
        if contents.world_size == world.size:
            return contents
        recorded = state["train"]["accumulation"]
        if not self._elastic:
            raise ResumeError(
                f"the checkpoint {contents.checkpoint} was made by {contents.world_size} ranks, this job has "
                f"{world.size}. Start {contents.world_size} ranks, or pass ranks=ckptkit.Ranks(elastic=True) to "
                f"continue with {world.size}, which keeps ranks x accumulation steps x micro-batch"
            )
        if recorded is None and not contents.progress.at_boundary:
            raise ResumeError(
                f"the checkpoint {contents.checkpoint} is in the middle of a cycle of a train cell that is not an "
                "AccumulationTrainCell, so it is unknown what it accumulated. Continue with "
                f'{contents.world_size} ranks, or from a checkpoint at a boundary (Saving(mid_cycle="align"))'
            )
        here = folded(contents, world.size, world.rank, [k for _, k in (recorded or {}).get("steps") or ()])
        if self._sources.position is not None and state["data"] is not None:
            state["data"] = self._sources.position.folded(state["data"], contents.world_size, world.size)
        return here

    def _compare(self, contents: Contents, state: Mapping[str, Any], seen: Mapping[str, Leaf], worlds: Worlds) -> None:
        sources = self._sources
        expected = sources.parameters.stored(seen, at_boundary=contents.progress.at_boundary)
        entries = {name: info for name, info in contents.entries.items() if info.role != "state"}
        problems = _problems(expected, entries, "missing in the checkpoint", "not in this training")
        if problems:
            rates = all(name.rpartition(".")[2].startswith("learning_rate") for *_, name in problems)
            advice = _RATES if rates else _OPTIMIZER if problems[0][0] else _NETWORK
            raise StateMismatchError(
                f"the checkpoint {contents.checkpoint} does not fit this training: {len(problems)} of its tensors "
                f"differ. Nothing was changed. {advice}, or start under another root, such as "
                f'CheckpointCallback("NEW_ROOT"):{listed([line for *_, line, _ in problems])}'
            )
        given, stored = sources.stateful.keys(), state["user"].keys()
        missing, extra = sorted(given - stored), sorted(stored - given)
        if missing or extra:
            raise StateMismatchError(
                "the stateful objects differ. Nothing was changed. "
                f"Given now but not in the checkpoint: {missing or 'none'}; in the checkpoint but not given: "
                f"{extra or 'none'}. Give the same ones as before, or start under another root."
            )
        for name, held in sources.stateful.items():
            if isinstance(held, (ParameterHolder, GeneratorHolder)):
                held.check(state["user"][name])
        position, data = sources.position, state["data"]
        if (position is None) != (data is None):
            raise ResumeError(
                f"{contents.checkpoint} was taken {'without' if data is None else 'with'} a dataset, and this training "
                f"is {'without' if position is None else 'with'} one: StateManager must get it both times, or never"
            )
        if position is not None:
            position.check(data)
        recorded, mine = state["train"]["mode"], mode_in_force()
        if recorded not in (None, mine):
            raise ResumeError(
                f"the checkpoint {contents.checkpoint} was taken in {recorded}_MODE, this process is in {mine}_MODE, "
                f"which rounds differently. Call ms.set_context(mode=ms.{recorded}_MODE), or start under another root."
            )
        if sources.named_cells and worlds.before != worlds.now:
            raise ResumeError(
                f"{contents.checkpoint} was made by {worlds.before} ranks, this job has {worlds.now}, and the cycles "
                f"of a train cell that is given by name cannot be converted. Start {worlds.before} ranks"
            )

    def _judge_changes(self) -> None:
        """Report parameters that a loop which positions its data itself changed, but for rates, which it may set.

        Once, as it calls its first cell: by the first call of another one it may have trained.
        """
        contents, self._restored = self._restored, None
        if contents is None or self._sources.counting.now()[1] != contents.progress.batches_delivered:
            return
        parameters = self._sources.parameters
        restored = {name: parameters.as_read[name] for name in parameters.as_read.keys() - parameters.rates()}
        if changed := differing(restored, parameters.digests_in_place()):
            self._examination.judge_doubt(
                f"{some(changed)}: changed between restore() and the first batch. A resumed run begins with these "
                "values, and not with those of its checkpoint. Change them before restore()"
            )

    def _watch_calls(self, updates: int, before: Callable[[], None] | None = None) -> None:
        """Call ``before`` as the loop calls a cell next, and compare the steady parameters around that of ckptkit's.

        What a forward or backward pass changes is named, and each save copies it from then on. The optimizers, which
        have made ``updates``, record their memory at their next call.
        """
        sources, parameters = self._sources, self._sources.parameters
        for memory in sources.detached:
            memory.begin(updates)

        def begin() -> Callable[[], None]:
            if before is not None:
                before()
            return partial(compare, parameters.steady_digests())

        def compare(steady: Mapping[str, str]) -> None:
            changed = differing(steady, parameters.steady_digests())
            if changed:
                _log.warning(
                    "the forward pass changes %s, which only an update should: each save copies them at once. If this "
                    "is not intended, remove them from the optimizer, or from frozen=",
                    some(changed),
                )
                parameters.demote(changed)

        if isinstance(sources.cell, AccumulationTrainCell):
            sources.cell.watch(begin)
        if before is not None:
            for cell in sources.cells:
                if not isinstance(cell, (AccumulationTrainCell, *OPTIMIZERS)):
                    before_next_call(cell, before)

    def _restore_objects(
        self, contents: Contents, states: Mapping[str, Any], give: Callable[[str, Stateful], object]
    ) -> None:
        """Restore the objects given by name: first those that ckptkit restores, then the others, by ``give``.

        Parameters that one of the others writes to, such as a teacher to its student's, are restored once more. What
        has the object's bits then may be the memory of its own parameters, too, so each parameter gets other memory.
        """
        sources = self._sources
        holders: dict[str, Stateful] = {}
        others: dict[str, Stateful] = {}
        for name, held in sources.stateful.items():
            (holders if isinstance(held, (ParameterHolder, OtherCallbacks)) else others)[name] = held
        for name, held in holders.items():  # compared already, or restored later
            held.load_state_dict(states[name])

        def digests_by_name() -> dict[str, str]:
            by_name = sources.tensors_by_name() if can_be_live() else {}
            return {name: digest_of_bits(bits_of(tensor.asnumpy())) for name, tensor in by_name.items()}

        before = {**digests_by_name(), **sources.parameters.as_read} if others else {}
        for name, held in others.items():
            give(name, held)
        if not before:
            return
        written = differing(before, {**digests_by_name(), **sources.parameters.digests_in_place()})
        if written:
            sources.shared_memory.renew(written)
            sources.shared_memory.restore(self._shared)
            sources.parameters.read_again_from(contents)
            for name, held in holders.items():
                held.load_state_dict(states[name])

    def _give(self, states: Mapping[str, Any], name: str, stateful: Stateful) -> None:
        if (doubt := load_checked(name, stateful, states[name])) is not None:
            self._examination.judge_doubt(doubt)

    def _keep_rates(self, begun_with: Mapping[str, str] | None) -> None:
        """Keep the rates that the run began with; warn if the script gives others, which the restored ones replace."""
        if begun_with is None:
            return
        self._sources.rates = dict(begun_with)
        restored = self._sources.parameters.rates()
        built = self._built_rates
        other = [name for name in built if built[name] not in (begun_with.get(name, built[name]), restored[name])]
        if other:
            _log.warning(
                "%s: the script gives other values than the run began with, and those of the checkpoint stay in force. "
                "To train with others, set them while training (ops.assign, LearningRateScheduler), or begin a run "
                "with these weights (`ckptkit export`, `ckptkit import`)",
                some(sorted(other)),
            )


def _problems(
    wanted: Mapping[str, Leaf], stored: Mapping[str, TensorInfo], not_stored: str, not_wanted: str
) -> list[tuple[bool, int, str, str]]:
    """Return how what is stored differs from what is wanted: a line and a name each, weights first.

    The others' order is by place, so that the old and the new name of a renamed parameter are adjacent.
    """
    problems: list[tuple[bool, int, str, str]] = []
    for place, name in enumerate(sorted(wanted.keys() - stored.keys())):
        problems.append((wanted[name].role != "weights", place, f"{not_stored}: {name}", name))
    for place, name in enumerate(sorted(stored.keys() - wanted.keys())):
        problems.append((stored[name].role != "weights", place, f"{not_wanted}: {name}", name))
    for name in wanted.keys() & stored.keys():
        leaf, info = wanted[name], stored[name]
        placement = leaf.spec.placement
        shape = placement.global_shape if isinstance(placement, Box) else leaf.shape
        if (leaf.dtype, shape) != (info.dtype, info.shape):
            here = f"this training has {leaf.dtype} {list(shape)}"
            line = f"{name}: the checkpoint has {info.dtype} {list(info.shape)}, {here}"
            problems.append((leaf.role != "weights", -1, line, name))
    return sorted(problems)


def _tell_what_was_folded(before: Contents, after: Contents, worlds: Worlds, rank: int, *, positioned: bool) -> None:
    was, now = before.progress, after.progress
    and_sums = ", and so are the accumulators, whose sum over the ranks is kept" if now.micro_step else ""
    _log.warning(
        "%s was made by %d ranks and continues with %d: accumulation steps %d -> %d, micro-step %d -> %d, batches "
        "%d -> %d, so an update sees the same %d micro-batches. Gradients are summed in another order, so updates are "
        "equal up to floating-point order and rounding%s. Not exact: what each rank has of its own, such as BatchNorm "
        "statistics and random state, comes from rank %d here (rank %% %d)%s.",
        *(after.checkpoint, worlds.before, worlds.now, was.accumulation_steps, now.accumulation_steps),
        *(was.micro_step, now.micro_step, was.batches_delivered, now.batches_delivered),
        *(worlds.now * now.accumulation_steps, and_sums, rank % worlds.before, worlds.before),
        "" if positioned else "; and the data, which the loop positions itself",
    )


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


def _have_unlike_bits(contents: Contents, leaves: Collection[str], names: Collection[str]) -> bool:
    """Return whether some of ``names`` that are ``leaves`` of the cells are to have other bits than the rest."""
    own = [name for name in names if name in leaves]  # a file of weights has nothing for objects given by name
    return len({contents.peek(name).tobytes() if name in contents.entries else None for name in own}) > 1
