"""Examines a training for what its checkpoints cannot make exact, by `Examination`.

Guarantees: reads the user's code and objects, and changes nothing. Of that code it runs ``state_dict()`` and
``load_state_dict()`` of copies, and ``state_dict()`` of restored objects. What is found is refused if ``strict`` is
set, and otherwise logged as a warning: before a restore has changed anything, and, for what a custom loop makes after
the restore, before its first batch. Code that cannot be read stops no training unless ``strict`` is set. Does not
find everything that is inexact. Main thread only, between two micro-steps.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import mindspore as ms
from mindspore.train import LambdaCallback, LearningRateScheduler, ReduceLROnPlateau

from ckptkit.core.tensors import Leaf
from ckptkit.core.text import listed, some
from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.iterable import IterablePosition
from ckptkit.mindspore.data.pipeline_position import DatasetPosition
from ckptkit.mindspore.inspect import (
    ChangedValues,
    Root,
    constants_in_callbacks,
    constants_in_loops,
    differ,
    find,
    find_in_loops,
    find_in_steps_of_callbacks,
    find_in_steps_of_cells,
    find_kept_by_stateless,
    find_lost_state,
    find_parted_objects,
    find_partial_generators,
    find_random_operators,
    find_remade_otherwise,
    hooks_of,
    is_single,
    left_out,
    loop_variables,
    made,
    may_limit,
    read_here,
    roots_of_loops,
    sources_of,
    start_values_of,
    used_in_loops,
    variable_of,
)
from ckptkit.mindspore.inspect.attributes import looked_once
from ckptkit.mindspore.inspect.cells import place_of
from ckptkit.mindspore.inspect.finding import Finding, sentences
from ckptkit.mindspore.inspect.frames import Lines, running_lines
from ckptkit.mindspore.inspect.loops.objects import Stored
from ckptkit.mindspore.inspect.loops.stored_attributes import stored_by
from ckptkit.mindspore.inspect.sequential import cells_of
from ckptkit.mindspore.inspect.users import is_of_users
from ckptkit.mindspore.inspect.values.addresses import address_in
from ckptkit.mindspore.parameters.compiled_memory import CompiledMemory
from ckptkit.mindspore.parameters.detached import Addresses
from ckptkit.mindspore.parameters.roles import warn_if_no_weight_changes
from ckptkit.mindspore.state.holders import ParameterHolder
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks
from ckptkit.mindspore.state.sources import Sources
from ckptkit.mindspore.state.switches import mode_in_force
from ckptkit.mindspore.versions import warn_if_untried

_log = logging.getLogger("ckptkit")
_ACTING = (LambdaCallback, LearningRateScheduler, ReduceLROnPlateau)  # MindSpore's others look, or end the training
_CALLBACKS = "callbacks"  # among the start values: the class names of those that may have an effect

_Found = TypeVar("_Found")


class Examination:
    """Reports what no checkpoint of a training can make exact.

    Args:
        sources: What the checkpoints store.
        strict: Refuse what cannot be exact instead of warning.
    """

    def __init__(self, sources: Sources, *, strict: bool) -> None:
        warn_if_untried()
        self._sources = sources
        self._strict = strict
        self._reported: list[Finding] | None = None
        self._restored_at: Lines = {}
        self._unreadable = False
        self._memory = CompiledMemory(sources.parameters, sources.cells, Addresses(sources.tensors).moved)
        self._changes = ChangedValues()
        self._callbacks: list[object] = []
        self._at_restore: set[str] = set()  # names of start values
        self._begins = False  # the run, and does not go on
        self._has_steps = self._has_saved = False
        self._told_of_aliases = False
        self._looks_at_states = 2  # saves; the state of the first may be empty

    def findings(self, since: Lines | None = None) -> tuple[Finding, ...]:
        """Return what is found in the present mode.

        Args:
            since: Where the running functions were at the restore; None if they are there now.
        """
        sources = self._sources
        pipeline = sources.position.dataset if isinstance(sources.position, DatasetPosition) else None
        holders = {name: one for name, one in sources.stateful.items() if isinstance(one, ParameterHolder)}
        parameters = [parameter for one in holders.values() for parameter in one.parameters()]
        # Objects without a state_dict() of their own are searched for unstored state like all other objects.
        named = [*(one for name, one in sources.given.items() if name not in holders), *parameters]
        left = [left_out(name, one.not_stored()) for name, one in holders.items() if one.not_stored()]
        left += find_partial_generators([*sources.given.items(), (type(sources.loader).__name__, sources.loader)])
        if isinstance(sources.position, DatasetPosition) and sources.position.is_declared_stateless:
            left += find_kept_by_stateless(sources.position.dataset)
        given = [(name, sources.given[name]) for name in holders]
        # Where `Model` trains, the code after the running line is not part of the training loop.
        variables = itertools.chain(given, () if sources.by_model() else loop_variables())
        cells, by_name, known = sources.every_cell(), sources.trained_by_name(), sources.known()
        steps = find_in_steps_of_cells(cells, known, self._changes.written, by_name=by_name)
        in_part = [(one.owner, one.names) for one in known if isinstance(one, Stored)]
        known_by = {"named": named, "by_name": by_name, "stored": in_part, "elsewhere": sources.stored_elsewhere()}
        of_cells = find(cells, pipeline, variables=variables, **known_by)
        again = self._read_again()
        found = (*of_cells, *find_random_operators(again), *steps, *left)
        if sources.by_model():
            return found
        stored = [*known, *parameters, *(sources.known_data() if again is None else ())]
        constants = constants_in_loops(cells, in_graph=mode_in_force() == "GRAPH")
        trained = [*cells, *sources.cells_by_name()]
        in_loops = find_in_loops(
            stored,
            since,
            is_placed=sources.position is not None,
            hooks=hooks_of(trained),
            data=read_here(again),
            sources=sources_of(again),
            cells=trained,
            examined=[*cells, *(one for _, one in by_name)],
            written=self._changes.written,
            trained_by=sources.trained_by,
        )
        return (*found, *constants, *in_loops)

    def _lost_state(self) -> tuple[Finding, ...]:
        given, loader = self._given(), self._sources.loader
        variables = () if self._sources.by_model() else loop_variables()
        # What their code leaves out is found with the code that uses them.
        read = {id(one) for _, one in given if stored_by(one) is not None}
        stored = [one for _, one in given]
        lost = find_lost_state([*given, (type(loader).__name__, loader)], read, stored)
        return (*lost, *find_parted_objects(given, [*given, *variables]))

    def _given(self) -> list[tuple[str, Any]]:
        """Return the objects that were given by name, with their names."""
        return [(name, one) for name, one in self._sources.given.items() if not isinstance(one, OtherCallbacks)]

    def _read_again(self) -> Any:
        """Return the data whose place is reached by reading them again; None if they have a state of their own."""
        position = self._sources.position
        if isinstance(position, DatasetPosition):
            return position.dataset
        return position.read_again if isinstance(position, IterablePosition) else None

    def examined(self) -> tuple[Finding, ...]:
        """Return `findings`, or nothing if the code cannot be examined, which is logged once.

        Raises:
            ResumeError: If the code cannot be examined and ``strict`` is set.
        """
        return self._examined(self.findings)

    def judge(self) -> None:
        """Report the findings, once; ResumeError if ``strict`` refuses one, also at the next call."""
        if self._reported is None:
            found = (*self.examined(), *self._examined(self._lost_state))
            self._report(found)
            warn_if_no_weight_changes(self._sources.parameters.tensors())
            self._reported, self._restored_at = [*found], running_lines()

    def judge_loop(self) -> None:
        """Report what was made or defined since `judge`; ResumeError if ``strict`` refuses it."""
        if self._reported is None or self._sources.by_model():
            return
        changed = self._sources.changed_since()
        if changed:
            self.judge_doubt(
                f"{some(changed)}: changed between restore() and the first batch. A resumed run begins with these "
                "values, and not with those of its checkpoint. Change them before restore()"
            )
        self._judge_late_values()
        known = {(one.kind, one.where) for one in self._reported}
        found = self._examined(lambda: self.findings(self._restored_at))
        new = [one for one in found if (one.kind, one.where) not in known]
        self._reported += new
        self._report(new)

    def judge_callbacks(self, callbacks: Sequence[object], metrics: Iterable[object], acting: Sequence[object]) -> None:
        """Report what they do that no checkpoint can make exact; ResumeError if ``strict`` refuses it.

        Args:
            callbacks: All but `CheckpointCallback`.
            metrics: Those of evaluations.
            acting: The callbacks that may have an effect on training.
        """
        self._compare_callbacks(acting)
        cells = self._sources.every_cell()
        known, data = [*self._sources.known(), *self._reported_callbacks()], self._read_again()
        self._callbacks = [*callbacks, *metrics]
        others = [(type(one).__name__, one) for one in callbacks]
        self._report(
            self._examined(
                lambda: (
                    *constants_in_callbacks(callbacks, cells, in_graph=mode_in_force() == "GRAPH"),
                    *find_in_steps_of_callbacks(
                        callbacks, known, read_here(data), cells, metrics=metrics, written=self._changes.written
                    ),
                    *find_parted_objects(self._given(), others),
                )
            )
        )

    def _compare_callbacks(self, acting: Sequence[object]) -> None:
        """Report callbacks with which the run did not begin, and those that are missing."""
        acting = [one for one in acting if is_of_users(one) or isinstance(one, _ACTING)]
        now = Counter(type(one).__name__ for one in acting)
        if self._begins:
            self._sources.arrays = {**self._sources.arrays, _CALLBACKS: " ".join(sorted(now.elements()))}
            return
        began = self._sources.arrays.get(_CALLBACKS)
        if began is None:
            return
        missing, new = Counter(began.split()) - now, now - Counter(began.split())
        words = [f"without {', '.join(missing)}" if missing else "", f"with {', '.join(new)}" if new else ""]
        if missing or new:
            self.judge_doubt(
                f"This start trains {' and '.join(filter(None, words))}, other than the first start of the run. If "
                "that decides what is trained, give it the same callbacks at each start"
            )

    def judge_save(self, leaves: Sequence[Leaf], sections: Mapping[str, Any]) -> None:
        """Report what a save cannot hold; ResumeError if ``strict`` refuses it.

        ``leaves`` and ``sections`` were taken just now. For a loop that only saves, do the same as `end_step`.
        """
        if not self._has_steps:
            self._look()
        is_first, self._has_saved = self._begins and not self._has_saved, True
        for doubt, certain in self._memory.doubts(leaves, compiled=bool(self._sources.trained_by)):
            self.judge_doubt(doubt, may_refuse=certain or is_first)
        if self._sources.ended is None:
            self.judge_doubt(self._sources.counting.doubt())
        self._judge_addresses(sections)
        self._judge_aliases(sections["user"])

    def _judge_addresses(self, sections: Mapping[str, Any]) -> None:
        """Report what a load makes anew, and that the state of an object or of the loader holds `id()` of an object."""
        if self._looks_at_states == 0:
            return
        self._looks_at_states -= 1
        for one in self._examined(lambda: tuple(find_remade_otherwise(self._given())), may_refuse=False):
            self._looks_at_states = 0
            self.judge_doubt(str(one), may_refuse=False)
        loader = self._sources.loader
        states = {**sections["user"], **({} if loader is None else {type(loader).__name__: sections["data"]["state"]})}
        for name, state in states.items():
            found = address_in(state, self._sources.reached())
            if found is not None:
                self._looks_at_states = 0
                what = found.name if isinstance(found, ms.Parameter) else type(found).__name__
                doubt = f"{name}: its state holds id() of {what}, and the next process has another one there. "
                self.judge_doubt(f"{doubt}Use a name or a number in place of id()", may_refuse=False)
                return

    def _judge_aliases(self, states: Mapping[str, Any]) -> None:
        """Report once that an object given by name holds the memory of a parameter, as ``asnumpy()`` gives it."""
        name, parameters = ("", []) if self._told_of_aliases else self._sources.holding_memory(states)
        if parameters:
            self._told_of_aliases = True
            self.judge_doubt(
                f"{name} holds arrays that are the memory of {some(parameters)}, so that they change with training; "
                "after a resume they are copies and do not. Take copies: asnumpy().copy()"
            )

    def end_step(self) -> None:
        """Report what training has changed although no code that was read changes it; call after each micro-step.

        Raises:
            ResumeError: If ``strict`` refuses it. Nothing is refused any more once something has been saved.
        """
        self._has_steps = True
        self._memory.first_step_ended()
        self._look()

    def _look(self) -> None:
        if not self._changes.is_due():
            return
        data = self._read_again()
        known = [*self._sources.known(), *self._reported_callbacks()]
        known += [self._sources.position] if data is None else [*sources_of(data), *read_here(data)]
        changed = self._examined(lambda: self._changes.look(self._roots(), known), may_refuse=not self._has_saved)
        if changed:
            doubt = (
                f"{some(changed)}: training changes this in code that could not be read, and no checkpoint has it. If "
                "training depends on it, set it from what restore() returns, or give an object that holds it by name, "
                "with state_dict() and load_state_dict()"
            )
            self.judge_doubt(doubt, may_refuse=not self._has_saved)

    def _reported_callbacks(self) -> Iterator[Any]:
        """Yield the callbacks whose state is stored or reported by themselves."""
        for one in self._sources.stateful.values():
            if isinstance(one, OtherCallbacks):
                yield from one.reported

    def _roots(self) -> Iterator[Root]:
        if not self._sources.by_model():
            yield from roots_of_loops()
        yield from (Root(type(one).__name__, one, None, id(one)) for one in self._callbacks)
        found = {id(one.cell): one for cell in self._sources.every_cell() for one in cells_of(cell)}
        yield from (Root(place_of(one), one.cell, None, at) for at, one in found.items())

    def note_start_values(self) -> None:
        """Note in the sources the arrays that the script has made, and that no checkpoint holds: the run begins."""
        self._sources.arrays = self._arrays()
        self._at_restore, self._begins = made(self._sources.arrays), True

    def judge_start_values(self, begun_with: Mapping[str, str]) -> None:
        """Report arrays that are not those with which the run began; ResumeError if ``strict`` refuses it."""
        now = self._arrays() if begun_with else {}
        self._at_restore, self._begins = made(now), False
        self._sources.arrays = begun_with
        self._compare(begun_with, now)

    def _judge_late_values(self) -> None:
        """Note or compare the arrays that the script has made since the restore, as of the weights that it restored."""
        late = {key: one for key, one in self._arrays().items() if key not in self._at_restore and not is_single(one)}
        if self._begins:
            self._sources.arrays = {**self._sources.arrays, **late}
        else:
            self._compare({name: one for name, one in self._sources.arrays.items() if name in late}, late)

    def _arrays(self) -> dict[str, str]:
        variables = () if self._sources.by_model() else loop_variables()
        cells, named = self._sources.every_cell(), self._sources.objects()
        return dict(self._examined(lambda: tuple(start_values_of(cells, variables, named).items())))

    def _compare(self, begun_with: Mapping[str, str], now: Mapping[str, str]) -> None:
        other = sorted(name for name, digest in begun_with.items() if differ(now.get(name, digest), digest))
        single = {name: variable_of(name) for name in other if is_single(begun_with[name])}
        limits = {variable for name, variable in single.items() if may_limit(begun_with[name], now[name])}
        used = self._used(set(single.values()), limits) if single else ()
        other = [name for name in other if name not in single or single[name] in used]
        if other:
            self.judge_doubt(
                f"{some(other)}: not the values with which the run began, and no checkpoint has those. If training "
                "uses them, give them equal values at each start: seed what draws them (ms.set_seed, np.random.seed), "
                "sort what comes out of a set, or keep them in a Parameter, or, if an earlier run of the script "
                "decides them, in an object that is given by name to that run"
            )

    def _used(self, names: Collection[str], limits: Collection[str]) -> Collection[str]:
        """Return the names on whose values training by a loop depends; ``limits`` may say how long it goes on."""
        hooks = hooks_of([*self._sources.every_cell(), *self._sources.cells_by_name()])
        return self._examined(lambda: tuple(used_in_loops(names, limits, self._sources.known(), hooks)))

    def judge_doubt(self, doubt: str | None, *, may_refuse: bool = True) -> None:
        """Report ``doubt``, if there is one; ResumeError if ``strict`` refuses it and that ``may_refuse``."""
        if doubt is None:
            return
        if self._strict and may_refuse:
            raise ResumeError(doubt)
        _log.warning("The resumed run may not be bit-exact. %s", doubt)

    def _examined(self, find_all: Callable[[], tuple[_Found, ...]], *, may_refuse: bool = True) -> tuple[_Found, ...]:
        try:
            return looked_once(find_all)
        except Exception as error:  # the examined code is arbitrary; failing to read it must not stop a training
            if self._strict and may_refuse:
                raise ResumeError(
                    "strict=True, but the code of this training could not be examined, so it may not resume exactly: "
                    f"{error!r}. Change what was read there, or allow it with strict=False"
                ) from error
            if not self._unreadable:
                self._unreadable = True
                _log.warning(
                    "ckptkit could not examine the code of this training for what does not resume exactly. Training "
                    "continues, and is saved and resumed as usual",
                    exc_info=error,
                )
            return ()

    def _report(self, found: Sequence[Finding]) -> None:
        if found and self._strict:
            words = "strict=True refuses what cannot be resumed exactly. Change it, or allow it with strict=False:"
            raise ResumeError(words + listed([str(one) for one in found]))
        for one in sentences(found):
            _log.warning("%s", one)
