"""Reports what makes a resumed training differ, by `Examination`: what no checkpoint holds, and what is not as it was.

Guarantees: reads the user's objects; puts back what a checkpoint holds of them, and changes nothing else. What is found
is refused if ``strict`` is set, and otherwise logged as a warning. Main thread only, between two micro-steps.
"""

from __future__ import annotations

import functools
import logging
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import mindspore.dataset as ds
from mindspore import nn
from mindspore.train import LambdaCallback, LearningRateScheduler, ReduceLROnPlateau

from ckptkit.core.tensors import Leaf
from ckptkit.core.text import listed, some
from ckptkit.errors import ResumeError
from ckptkit.manager.hooks import LOADER
from ckptkit.mindspore.data.iterable import IterablePosition
from ckptkit.mindspore.data.pipeline_position import DatasetPosition
from ckptkit.mindspore.observe.message import in_words, named, stored
from ckptkit.mindspore.observe.named_objects import owner_of
from ckptkit.mindspore.observe.observer import Observer
from ckptkit.mindspore.observe.paths import Root
from ckptkit.mindspore.observe.random_operators import Finding, RandomOperators, code_of_data, sentences
from ckptkit.mindspore.observe.user_code import is_users_class
from ckptkit.mindspore.observe.value_kinds import Known
from ckptkit.mindspore.observe.walk import Walk
from ckptkit.mindspore.observe.walk_roots import Reached, is_module_level, label_of, users_frames
from ckptkit.mindspore.parameters.apply import mode_in_force
from ckptkit.mindspore.parameters.memory import CompiledMemory
from ckptkit.mindspore.parameters.roles import warn_if_no_weight_changes
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks
from ckptkit.mindspore.state.sources import Sources
from ckptkit.mindspore.state.stateful_objects import GeneratorHolder, NamedAttributes, ParameterHolder
from ckptkit.mindspore.versions import warn_if_untried

_log = logging.getLogger("ckptkit")
_ACTING = (LambdaCallback, LearningRateScheduler, ReduceLROnPlateau)  # MindSpore's others look, or end the training
_CALLBACKS = "callbacks"  # in the section train: the class names of those that may have an effect


class Examination:
    def __init__(self, sources: Sources, *, strict: bool, ignore: Sequence[Any] = ()) -> None:
        warn_if_untried()
        self._sources = sources
        self._strict = strict
        self._judged: tuple[Finding, ...] | None = None
        self._memory = CompiledMemory(sources.parameters, sources.cells, sources.tensors)
        self._callbacks: list[object] = []
        self._begins = False  # the run, and does not go on
        self._has_saved = False
        self._is_readable = True  # what the observer reads
        self.observer = Observer(self._reached, ignore=ignore)
        self._reported: set[str] = set()
        # For ``ckptkit doctor``; its looks leave those that decide what is stored as they are.
        self._compared: Observer | None = None
        self.began: dict[str, str] = {}  # what `reached` told as the first batch was handed out

    def findings(self) -> tuple[Finding, ...]:
        """Return the random operators and pipelines that no checkpoint can make exact, in the present mode."""
        sources = self._sources
        cells = [*(("", cell) for cell in sources.every_cell), *sources.trained_by_name()]
        operators = RandomOperators(cells, compiled=sources.is_compiled)
        operators.read_data(self._data_read_again())
        for frame in () if sources.by_model() else users_frames(sys._getframe(1)):
            operators.read(frame, "script" if is_module_level(frame) else label_of(frame))
        for path, value, is_wrapped in self.observer.reached_code:
            operators.read(value, path, compiled=is_wrapped and operators.in_graph)
        return (*operators.findings,)

    def _data_read_again(self) -> Any:
        """Return the data whose place is reached by reading them again; None if they have a state of their own."""
        position = self._sources.position
        if isinstance(position, DatasetPosition):
            return position.dataset
        return position.read_again if isinstance(position, IterablePosition) else None

    def judge(self) -> None:
        """Report the findings, once; ResumeError if ``strict`` refuses one, also at the next call."""
        if self._judged is None:
            findings = self.findings()
            self._report(findings)
            warn_if_no_weight_changes(self._sources.parameters.tensors())
            self._judged = findings

    def begin(self, *, ends_epoch: bool = False) -> None:
        """Put back what the checkpoint holds, as the first batch is handed out, and report what differs; only once."""
        if self.observer.has_begun:
            self.observer.hand_out(ends_epoch=ends_epoch)
            return
        sources = self._sources
        # The memory that an uninterrupted run has here; a loop that tells no beginning may still set rates.
        for memory in sources.detached if sources.by_model() or sources.batches is not None else ():
            memory.bind_resumed()
        lost, differs = self._observed(self.observer.begin) or ((), ())
        if self._compared is not None:
            self._compared.begin()
            self.began = self.reached(sys._getframe(1))
        sources.is_compiled = self.observer.reaches_compiled and not sources.by_model()
        known = {finding.why for finding in self._judged or ()}
        self._report([finding for finding in self.findings() if finding.why not in known])
        self.observer.reached_code = []
        if lost or differs:
            self.judge_doubt(in_words(lost, differs))

    def note_place(self) -> None:
        """Note the variables that are live here, where a loop asks for its next batch or epoch."""
        self._observed(self.observer.note_place)

    def ask_batch(self) -> None:
        """Look at what the script does between step() and its next batch."""
        self._observed(self.observer.ask_batch)
        self._tell()

    def judge_callbacks(self, callbacks: Sequence[object], metrics: Iterable[object], acting: Sequence[object]) -> None:
        """Report callbacks with which the run did not begin, and observe all of them.

        Args:
            callbacks: All but `CheckpointCallback`.
            metrics: Those of evaluations.
            acting: The callbacks that may have an effect on training.
        """
        self._callbacks = [*callbacks, *metrics]
        acting = [callback for callback in acting if is_users_class(type(callback)) or isinstance(callback, _ACTING)]
        now = Counter(type(callback).__name__ for callback in acting)
        if self._begins:
            self._sources.arrays = {**self._sources.arrays, _CALLBACKS: " ".join(sorted(now.elements()))}
            return
        began = self._sources.arrays.get(_CALLBACKS)
        if began is None:
            return
        sides = {"without": Counter(began.split()) - now, "with": now - Counter(began.split())}
        words = [f"{side} {', '.join(names)}" for side, names in sides.items() if names]
        if words:
            self.judge_doubt(
                f"This start trains {' and '.join(words)}, other than the first start of the run. If that decides what "
                "is trained, give it the same callbacks at each start"
            )

    def note_start(self, begun_with: Mapping[str, str] | None, observed: Mapping[str, Any] | None) -> None:
        """Note that a run begins, or that one goes on that began with these callbacks.

        What its checkpoint holds of the script's own state, ``observed``, is kept until `begin`.
        """
        self._begins = begun_with is None
        self._sources.arrays = begun_with or {}
        self.observer.load(observed)

    def observed(self) -> dict[str, Any] | None:
        """Return the section ``observed`` of a checkpoint; reports what cannot be stored."""
        section: dict[str, Any] | None = self._observed(partial(self.observer.section, sys._getframe(1)))
        self._tell()
        return section

    def judge_save(self, leaves: Sequence[Leaf], states: Mapping[str, Any]) -> None:
        """Report what a save cannot hold; ResumeError if ``strict`` refuses it.

        Args:
            leaves: The parameters, taken just now.
            states: Those of the objects given by name; they are looked through at the first save only.
        """
        if not self._has_saved:
            name, parameters = self._sources.holding_memory(states)
            if parameters:
                self.judge_doubt(
                    f"{name} holds arrays that are the memory of {some(parameters)}, so that they change with "
                    "training; after a resume they are copies and do not. Take copies: asnumpy().copy()"
                )
        is_first, self._has_saved = self._begins and not self._has_saved, True
        for doubt, certain in self._memory.doubts(leaves, compiled=self._sources.is_compiled):
            self.judge_doubt(doubt, may_refuse=certain or is_first)

    def end_step(self, epoch: int) -> None:
        """Look at what training has changed, if a look is due; call after each micro-step."""
        if self._memory.at_first is None:
            self._memory.first_step_ended()
        if self.observer.end_step(epoch):
            self._observed(self.observer.look)

    def _observed(self, look: Callable[[], Any]) -> Any:
        """Return what ``look`` does, or None where the user's objects cannot be read, which is said once."""
        if not self._is_readable:
            return None
        try:
            return look()
        except Exception as error:  # the objects are arbitrary; failing to read one must not stop a training
            if self._strict and not self._has_saved:
                raise ResumeError(
                    "strict=True, but the objects of this training could not be read, so that what changes in them is "
                    f"not stored: {error!r}. Change what was read there, or allow it with strict=False"
                ) from error
            self._is_readable = False
            _log.warning(
                "ckptkit could not read the objects of this training: what changes in them is not stored from now on, "
                "and the resumed run may not be bit-exact. All else is saved and resumed as usual",
                exc_info=error,
            )
            return None

    def _tell(self) -> None:
        new = [path for path in self.observer.stored if path not in self._reported]
        if new:
            _log.info("%s", stored(new))
        unstored = {path: why for path, why in self.observer.unstored.items() if f"!{path}" not in self._reported}
        self._reported |= {*new, *(f"!{path}" for path in unstored)}
        if unstored:
            if self._strict and not self._has_saved:
                raise ResumeError(named(unstored))
            _log.warning("%s", named(unstored))

    def _reached(self) -> Reached:
        sources = self._sources
        cells = sources.every_cell
        position = sources.position
        batches = sources.batches
        known = Known(parameters=sources.tensors())
        known.stored.update(known.names)
        for cell in cells:
            if hasattr(cell, "param_groups"):  # the groups of an experimental optimizer
                known.parts.setdefault(id(cell), set()).add("param_groups")
        given = [(name, value) for name, value in sources.given.items() if not self._add_stored(name, value, known)]
        if batches is not None:
            known.stored.update(map(id, (batches, *batches.iterators())))
        data = [*self._objects_of_data]
        if sources.loader is not None:
            data.append(sources.loader)
        return Reached(
            cells=[*(("", cell) for cell in cells), *sources.cells_by_name()],
            given=given,
            callbacks=self._callbacks,
            known=known,
            data=data,
            has_threads=isinstance(position, DatasetPosition),
            is_stateless=isinstance(position, DatasetPosition) and position.is_declared_stateless,
            data_state=lambda: None if sources.loader is None else sources.loader.state_dict(),
            in_graph=mode_in_force() == "GRAPH",
            by_model=sources.by_model(),
            epochs=None if batches is None else batches.epochs,
            batches=() if batches is None else batches.iterators(),
        )

    @functools.cached_property
    def _objects_of_data(self) -> list[Any]:
        """The data that are read again; of a pipeline, which stays as it was made, the user's objects in it."""
        read_again = self._data_read_again()
        if isinstance(read_again, ds.Dataset):
            return [owner_of(code) or code for _, code, _ in code_of_data(read_again)]
        return [] if read_again is None else [read_again]

    def _add_stored(self, name: str, value: Any, known: Known) -> bool:
        """Add what checkpoints store of an object given by name; return whether nothing of it is left to observe."""
        holder = self._sources.stateful[name]
        if isinstance(value, OtherCallbacks):
            for callback, names in value.stored_attributes():
                known.parts.setdefault(id(callback), set()).update(names)
        elif isinstance(value, NamedAttributes):
            known.parts.setdefault(id(value.owner), set()).update(value.names)
        elif isinstance(holder, ParameterHolder):
            places = {place.partition("/")[0].removeprefix(".") for place in holder.places()}
            known.parts.setdefault(id(value), set()).update(places)
            return isinstance(value, nn.Cell)
        elif isinstance(holder, GeneratorHolder):
            known.stored.add(id(value))
        else:
            return False
        return True

    def compare(self) -> None:
        """Let `reached` tell what training reaches, from the first batch on."""
        self._compared = Observer(self._reached)

    def reached(self, frame: types.FrameType) -> dict[str, str]:
        """Return texts by path of what training reaches besides what checkpoints hold; nothing without `compare`."""
        if self._compared is None or not self._compared.has_begun:
            return {}
        walk, loader = Walk(Known()), self._sources.loader
        if loader is not None:
            walk.add(Root("data", "", f"{LOADER}{type(loader).__name__}"), loader)
            walk.run()
        return self._compared.texts(frame) | {path: node.text for path, node in walk.nodes.items()}

    def judge_doubt(self, doubt: str | None, *, may_refuse: bool = True) -> None:
        """Report ``doubt``, if there is one; ResumeError if ``strict`` refuses it and that ``may_refuse``."""
        if doubt is None:
            return
        if self._strict and may_refuse:
            raise ResumeError(doubt)
        _log.warning("The resumed run may not be bit-exact. %s", doubt)

    def _report(self, findings: Sequence[Finding]) -> None:
        if findings and self._strict:
            words = "strict=True refuses what cannot be resumed exactly. Change it, or allow it with strict=False:"
            raise ResumeError(words + listed([str(finding) for finding in findings]))
        for sentence in sentences(findings):
            _log.warning("%s", sentence)
