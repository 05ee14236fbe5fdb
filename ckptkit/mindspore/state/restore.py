"""Restores a checkpoint into the sources of a training, by `Restore`.

Guarantees: everything is compared before anything is changed. While parameters are read, their cells are marked as half
restored. A user's object that is unchanged after it was given its state, and differs from it, is refused, unless it may
take the state over later: a loader at its next iteration, a callback at the beginning of the training. Any other
difference is reported, except values that also differ between two reads, such as a clock. Does not choose the
checkpoint, and reads no file except through `Contents`. Main thread only, between two micro-steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from mindspore.train import Callback

from ckptkit.core.contents import Contents
from ckptkit.core.process_group import World
from ckptkit.core.tensors import bits_of, digest_of_bits
from ckptkit.core.text import some
from ckptkit.errors import ResumeError
from ckptkit.mindspore.kernel_threads import take_denormals_as_zero_everywhere
from ckptkit.mindspore.parameters.apply import can_be_live, mode_in_force
from ckptkit.mindspore.rng import restore_rng
from ckptkit.mindspore.state.compatibility import check_data, check_leaves, check_mode, check_stateful
from ckptkit.mindspore.state.examination import Examination
from ckptkit.mindspore.state.forward_check import before_next_call, watch_forward
from ckptkit.mindspore.state.generators import GeneratorHolder
from ckptkit.mindspore.state.holders import NamedAttributes, ParameterHolder, Stateful, digests_by_place
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks
from ckptkit.mindspore.state.reshard import in_this_world, tell
from ckptkit.mindspore.state.sections import decoded
from ckptkit.mindspore.state.sources import Sources
from ckptkit.mindspore.train.cell import OPTIMIZERS, AccumulationTrainCell, clear_half_restored, mark_half_restored
from ckptkit.mindspore.train.schedule import Worlds

_log = logging.getLogger("ckptkit")


class Restore:
    """Restores checkpoints into ``sources``, and undoes what the script changes between a restore and its loop."""

    def __init__(self, sources: Sources, examination: Examination, *, elastic: bool) -> None:
        self._sources = sources
        self._examination = examination
        self._elastic = elastic
        self._built_rates = sources.rates
        self._restored: Contents | None = None
        self._rng: dict[str, Any] | None = None
        self._shared: Sequence[Sequence[str]] = ()

    def apply(self, contents: Contents, world: World) -> None:
        """Restore ``contents``, those of the rank of the checkpoint that this one of ``world`` takes over."""
        sources = self._sources
        state = decoded(contents)
        stored, contents = contents, self._in_this_world(contents, state, world)
        seen = {leaf.name: leaf for leaf in sources.parameters.leaves(at_boundary=False)}
        check_leaves(contents, sources.parameters.stored(seen, at_boundary=contents.progress.at_boundary))
        check_stateful(sources.stateful.keys(), state["user"].keys())
        for name, one in sources.stateful.items():
            if isinstance(one, (ParameterHolder, GeneratorHolder)):
                one.check(state["user"][name])
        check_data(contents, sources.position, state["data"])
        check_mode(contents, state["train"]["mode"], mode_in_force())
        worlds = Worlds(contents.world_size, world.size, state["train"]["first_world"])
        if sources.named_cells and worlds.before != worlds.now:
            raise ResumeError(
                f"{contents.checkpoint} was made by {worlds.before} ranks, this job has {worlds.now}, and the cycles "
                f"of a train cell that is given by name cannot be converted. Start {worlds.before} ranks"
            )
        left = sources.counting.check(contents, state["train"], worlds if self._elastic else None)
        self._examination.judge()
        self._examination.judge_doubt(sources.numerics.doubt(state["train"]["numerics"]))
        self._examination.note_start(state["train"]["arrays"] or {})
        take_denormals_as_zero_everywhere()
        sources.cycle_start = None
        self._restored = None
        sources.counting.fence()
        mark_half_restored(sources.every_cell(), contents.checkpoint)
        self._shared = self._shared_at_save(contents, state)
        if sources.shared_memory.restore(self._shared):
            seen = {leaf.name: leaf for leaf in sources.parameters.leaves(at_boundary=False)}
        sources.parameters.read_from(contents, seen)
        progress = contents.progress
        sources.ended = state["train"]["ended"]
        if sources.position is not None:
            sources.position.prepare(progress.batches_delivered, state["data"])
        sources.prepared = True
        steady = self._restore_objects(contents, state["user"])
        sources.first_world = worlds.first
        # Last: a foreign cell may count in one of those objects.
        sources.counting.load(progress, state["train"], left)
        sources.load_switches(state["train"]["switches"], progress.batches_delivered)
        for memory in sources.detached:
            memory.begin(progress.updates)
        clear_half_restored(sources.every_cell())
        self._examination.load(state["observed"] if worlds.before == worlds.now else None)
        if worlds.before != worlds.now and state["observed"]:
            self._examination.judge_doubt(_not_put_back(state["observed"], worlds))
        self._keep_rates(state["train"]["rates"])
        self._rng = state["rng"]
        restore_rng(self._rng)
        self._restored = contents
        if worlds.before != worlds.now:
            tell(stored, contents, worlds, world.rank, positioned=sources.position is not None)
        sources.parameters.note_buffers()
        self._watch_beginning(steady)

    def _watch_beginning(self, steady: Mapping[str, Collection[str]]) -> None:
        """Let what changes before training and in the first forward pass be named."""
        sources = self._sources
        sources.note_beginning(resumes=True)
        sources.note_restored_states(steady)
        watch_forward(sources.cell, sources.parameters, self._examination.judge_changes)
        if sources.batches is None and sources.began_with:
            for cell in sources.cells:
                if not isinstance(cell, (AccumulationTrainCell, *OPTIMIZERS)):
                    before_next_call(cell, self._examination.judge_changes)

    def _shared_at_save(self, contents: Contents, state: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        """Return the groups that had one memory; if the checkpoint does not say, those of now with equal values."""
        said: Sequence[Sequence[str]] | None = state["train"]["shared_memory"]
        if said is not None:
            return said

        def bits(name: str) -> object:
            if name in contents.entries:
                return contents.peek(name).tobytes()
            given, _, place = name.partition("/")
            stored = state["user"].get(given, {})
            stored = stored["parameters"] if given in self._sources.named_cells else stored
            return stored[place][1].tobytes() if place in stored else name

        return [one for one in self._sources.shared_memory.groups() if len(set(map(bits, one))) == 1]

    def again(self) -> None:
        """Undo changes to the state since `apply`; see `StateManager.restore_again`."""
        if self._restored is not None:
            sources = self._sources
            sources.counting.fence()
            mark_half_restored(sources.every_cell(), self._restored.checkpoint)
            sources.parameters.leaves(at_boundary=False)  # looks where the parameters are now
            sources.shared_memory.restore(self._shared)
            sources.parameters.read_again_from(self._restored)
            user = decoded(self._restored)["user"]
            self._load_objects(self._restored, user, lambda name, one: one.load_state_dict(user[name]))
            clear_half_restored(sources.every_cell())
            sources.put_back()
            self.random_state()

    def _restore_objects(self, contents: Contents, states: Mapping[str, Any]) -> dict[str, Collection[str]]:
        """Restore the objects given by name; return the places in their states that are the same at each call.

        Objects with parameters are left out, but for `attributes`: their states are those of whole networks.
        """
        steady: dict[str, Collection[str]] = {}

        def give(name: str, one: Stateful) -> None:
            doubt, steady[name] = _give(name, one, states[name])
            self._examination.judge_doubt(doubt)

        self._load_objects(contents, states, give)
        for name, one in self._sources.stateful.items():
            if isinstance(self._sources.given[name], NamedAttributes):
                steady[name] = digests_by_place(one.state_dict()).keys()
        return steady

    def _load_objects(
        self, contents: Contents, states: Mapping[str, Any], give: Callable[[str, Stateful], object]
    ) -> None:
        """Restore the objects given by name: first those that ckptkit restores, then the others, by ``give``."""
        holders, others = self._objects()
        for name, one in holders.items():  # compared already, or restored later
            one.load_state_dict(states[name])
        before = self._digests() if others else {}
        for name, one in others.items():
            give(name, one)
        self._undo_writes(contents, states, before)

    def _objects(self) -> tuple[dict[str, Stateful], dict[str, Stateful]]:
        """Return the objects given by name that ckptkit restores, and those that restore themselves."""
        stateful = self._sources.stateful
        ours = [name for name, one in stateful.items() if isinstance(one, (ParameterHolder, OtherCallbacks))]
        others = {name: one for name, one in stateful.items() if name not in ours}
        return {name: stateful[name] for name in ours}, others

    def _digests(self) -> dict[str, str]:
        """Return `CellParameters.digests_in_place`, and the same of the objects given by name."""
        sources = self._sources
        named = sources.tensors_by_name() if can_be_live() else {}
        return {name: digest_of_bits(bits_of(one.asnumpy())) for name, one in named.items()} | (
            sources.parameters.digests_in_place()
        )

    def _undo_writes(self, contents: Contents, states: Mapping[str, Any], before: Mapping[str, str]) -> None:
        """Restore parameters again that an object given by name has written to, such as a teacher to its student's.

        ``before`` are `_digests` before these objects were restored. What has the object's bits now may be the
        memory of its own parameters, too, so each parameter gets other memory.
        """
        sources = self._sources
        now = self._digests() if before else {}
        written = {name for name, digest in before.items() if now.get(name) != digest}
        if written:
            sources.shared_memory.renew(written)
            sources.shared_memory.restore(self._shared)
            sources.parameters.read_again_from(contents)
            for name, one in self._objects()[0].items():
                if any(each.startswith(f"{name}/") for each in written):
                    one.load_state_dict(states[name])

    def random_state(self) -> None:
        """Restore the random state of `apply`, except what the data has positioned; does nothing without an `apply`."""
        if self._rng is not None:
            position = self._sources.position
            restore_rng(self._rng, keep=position.own_draws if position else ())

    def trained(self) -> None:
        """Leave the state to the loop; `again` has nothing to undo from now on."""
        self._restored = None
        for one in self._sources.switches():
            one.trained()

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

    def _in_this_world(self, contents: Contents, state: dict[str, Any], world: World) -> Contents:
        """Return ``contents`` converted for this rank; converts the data position in ``state`` too."""
        here = in_this_world(contents, world, state["train"]["accumulation"], elastic=self._elastic)
        if here is not contents and self._sources.position is not None and state["data"] is not None:
            state["data"] = self._sources.position.folded(state["data"], contents.world_size, world.size)
        return here


def _not_put_back(observed: Mapping[str, Any], worlds: Worlds) -> str | None:
    """Return what each rank kept of its own, which no rank of another number can go on from."""
    paths = [path for path, *_ in observed["slots"]]
    if not paths:
        return None
    ranks = f"kept by each of {worlds.before} ranks, and not put back in {worlds.now}"
    return f"{some(paths)}: {ranks}. Set it from what restore() returns"


def _give(name: str, one: Stateful, state: Any) -> tuple[str | None, set[str]]:
    """Call ``load_state_dict``; return a description of what was not taken from ``state``, or None.

    Also returns the places in the state of the object that are the same at each call.
    """
    takes_later = isinstance(one, (Iterable, Callback))
    given, before = digests_by_place(state), {} if takes_later else digests_by_place(one.state_dict())
    one.load_state_dict(state)
    after, again = digests_by_place(one.state_dict()), digests_by_place(one.state_dict())
    steady = {place for place in given.keys() | after.keys() if after.get(place) == again.get(place)}
    lost = sorted(place for place in steady if after.get(place) != given.get(place))
    if not lost:
        return None, steady
    if not takes_later and all(after.get(place) == before.get(place) for place in steady | before.keys()):
        raise ResumeError(
            f"load_state_dict() of {name} ({type(one).__name__}) changed nothing: its state_dict() is still the one "
            f"before, not the stored one ({some(lost)}). Make it load its state, then start again: the checkpoint "
            "has the state"
        )
    doubt = (
        f"After load_state_dict(), state_dict() of {name} ({type(one).__name__}) is not what was stored: "
        f"{some(lost)}. This is correct if the object loads it later, or should keep the values of this process"
    )
    return doubt, steady
