"""Gathers where a look begins: variables of running functions, globals, callbacks, cells, objects given by name.

Guarantees: reads frames and objects, and changes nothing. Main thread only.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import nn

from ckptkit.mindspore.observe.frame_variables import variables_of
from ckptkit.mindspore.observe.liveness import code_names, live_names
from ckptkit.mindspore.observe.paths import Root
from ckptkit.mindspore.observe.user_code import is_users_frame, is_users_function, library_of
from ckptkit.mindspore.observe.value_kinds import Known, globals_of
from ckptkit.mindspore.observe.walk import Walk

_THROUGH = (tuple, types.CellType, types.FunctionType, types.MethodType, functools.partial)
_MOST_LEVELS = 7
_POSITIONS = frozenset(("batches_delivered", "optimizer_step", "epoch"))  # of a ResumePoint
# Loops of attached trainers, which are watched like the user's, until their training is saved: after their end, too.
# By name with the class: the function that calls a trainer's train() may be called train(), too.
LOOPS: dict[types.FrameType, str] = {}


@dataclass(kw_only=True)
class Reached:
    """What a training gives to a look, besides its running functions.

    Attributes:
        cells: Its cells, by name; the empty name for those that were not given by name.
        given: The other objects that it gave by name.
        callbacks: Callbacks and metrics.
        known: What checkpoints store.
        data: What batches come from, which a resume reads again or restores by its own state.
        has_threads: Whether a pipeline runs them in threads, ahead of training.
        is_stateless: Whether the script says that they keep nothing from batch to batch.
        data_state: Gives the state that these tell themselves.
        in_graph: Whether cells are compiled as graphs.
        by_model: Whether ``Model`` trains, so that no loop of the user's goes on.
        epochs: How many epochs a loop of the user's is to train; None if that is not known.
        batches: The iterators of ckptkit's that hand out the batches of a loop.
    """

    cells: Sequence[tuple[str, nn.Cell]]
    given: Sequence[tuple[str, Any]]
    callbacks: Sequence[Any]
    known: Known
    data: Sequence[Any]
    has_threads: bool
    is_stateless: bool
    data_state: Callable[[], Any]
    in_graph: bool
    by_model: bool
    epochs: int | None
    batches: Sequence[Any]


def users_frames(frame: types.FrameType | None) -> list[types.FrameType]:
    """Return the frames of the user's code on the stack that ends with ``frame``, innermost first."""
    frames = []
    while frame is not None:
        if is_users_frame(frame) or frame in LOOPS:
            frames.append(frame)
        frame = frame.f_back
    return frames


def label_of(frame: types.FrameType) -> str:
    """Return the name of the function that a frame runs."""
    return f"{LOOPS.get(frame, frame.f_code.co_name)}()"


def is_module_level(frame: types.FrameType) -> bool:
    """Return whether a frame runs the code of a module."""
    return not frame.f_code.co_flags & 1  # CO_OPTIMIZED


def owner_of_variables(frame: types.FrameType) -> str:
    """Return the module or the function whose variables a frame has."""
    return str(frame.f_globals.get("__name__")) if is_module_level(frame) else label_of(frame)


class Roots:
    """Adds the roots of a training to walks.

    A resume begins where a batch is asked for, so the variables that are live there count, also in a look at the end
    of a micro-step.
    """

    def __init__(self) -> None:
        self._generators: list[weakref.ref[Any]] = []  # around the batches; a loop that is left ends them
        self._has_none_around = False
        self._live: dict[types.CodeType, frozenset[str]] = {}

    def add_to(self, walk: Walk, reached: Reached, frames: Sequence[types.FrameType], *, at_batch: bool) -> None:
        """Add all roots to a walk.

        Args:
            walk: Gets them.
            reached: What the training gives.
            frames: The running functions of the user's, innermost first.
            at_batch: Whether a batch is asked for or handed out, and no micro-step has just ended.
        """
        if at_batch:
            self.note_live(frames)
        frames = () if reached.by_model else frames  # their loops, if any, are around the whole training
        around = [] if at_batch else self._iterators_around(reached.batches)
        # The outermost first: what several reach has its name in a function that ends later.
        for frame in (*reversed(frames), *([] if at_batch else self.generators())):
            if frame.f_code in self._live:
                for root, value in self._variables(frame):
                    walk.add(root, value)
        for index, callback in enumerate(reached.callbacks):
            name = type(callback).__name__
            same = [type(other).__name__ for other in reached.callbacks[:index]].count(name)
            walk.add(Root("callback", str(same), name + (f"#{same + 1}" if same else "")), callback)
        for index, (name, cell) in enumerate(reached.cells):
            walk.add(Root("cell", str(index), name or type(cell).__name__), cell)
        for name, value in reached.given:
            walk.add(Root("given", "", name), value)
        self._add_threads(walk)
        # A script that reads the position begins them there, as in ``enumerate(batches, point.batches_delivered)``.
        reads_position = any(code_names(frame.f_code)[1] & _POSITIONS for frame in frames)
        for iterator in () if reads_position else around:
            if type(iterator) is not types.GeneratorType or iterator.gi_code not in self._live:
                walk.add(Root("iterator", "", f"{type(iterator).__name__} around the batches"), iterator)

    def generators(self) -> list[types.FrameType]:
        """Return the frames that may be off the stack: of the user's generators around the batches, and of `LOOPS`."""
        generators = (reference() for reference in self._generators)
        frames = [generator.gi_frame for generator in generators if generator is not None]
        return [*(frame for frame in frames if frame is not None), *LOOPS]

    def note_live(self, frames: Sequence[types.FrameType]) -> None:
        """Note the variables that are live in each running function.

        A loop of epochs asks for its batches in one place and for epochs in another: what was live in either counts.
        """
        for frame in frames:
            self._live[frame.f_code] = self._live.get(frame.f_code, frozenset()) | live_names(frame)

    def _variables(self, frame: types.FrameType) -> Iterator[tuple[Root, Any]]:
        live, (names, attributes) = self._live[frame.f_code], code_names(frame.f_code)
        if is_module_level(frame):
            all_names = frame.f_globals.keys() if {"globals", "vars"} & names else live
            yield from globals_of(frame.f_globals, all_names, attributes)
            return
        own = variables_of(frame)
        for name in sorted(live.union(frame.f_code.co_freevars) & own.keys()):  # those of others: it may run again
            yield Root("variable", label_of(frame), name), own[name]
        yield from globals_of(frame.f_globals, names - own.keys(), attributes)

    def _add_threads(self, walk: Walk) -> None:
        own = threading.get_ident()
        # No variable here may hold the frame of this function: it would hold all that is on the stack.
        others = [top for identity, top in _top_frames().items() if identity != own]
        for frame in (frame for top in others for frame in users_frames(top)):
            variables = variables_of(frame)
            for name in sorted(live_names(frame) & variables.keys()):
                walk.add(Root("thread", f"thread {label_of(frame)}", name), variables[name])

    def _iterators_around(self, batches: Sequence[Any]) -> list[Any]:
        """Return the user's iterators around the batches, which lie on the stack of a loop and in no variable."""
        around: list[Any] = []
        if not self._has_none_around:
            waiting: list[Any] = [*batches, *_running_generators()]
            seen = {id(iterator) for iterator in batches}
            for _ in range(_MOST_LEVELS):
                holders = gc.get_referrers(*waiting) if waiting else []
                holders = [holder for holder in holders if id(holder) not in seen and _may_iterate(holder)]
                seen |= {id(holder) for holder in holders}
                waiting = holders
                around += [
                    holder
                    for holder in holders
                    if not (issubclass(type(holder), _THROUGH) or _is_ours(holder) or _is_moved_on(holder))
                ]
            self._has_none_around = bool(batches) and not around
            self._generators = [weakref.ref(iterator) for iterator in around if type(iterator) is types.GeneratorType]
        return around


def _top_frames() -> dict[int, types.FrameType]:
    # Python 3.11 holds a lock meanwhile that a collection may want, which would then wait for ever (CPython 106883).
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


def _running_generators() -> list[Any]:
    """Return the generators of libraries that ask for a batch now, which nothing shows that they hold: as of tqdm."""
    frame, generators = sys._getframe(1).f_back, []
    while frame is not None and not is_users_frame(frame):
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            generators += [holder for holder in gc.get_referrers(frame) if type(holder) is types.GeneratorType]
        frame = frame.f_back
    return generators


def _may_iterate(value: Any) -> bool:
    if type(value) is types.FunctionType:
        return is_users_function(value)
    kind: Any = type(value)
    is_iterator = library_of(kind) in ("builtins", "itertools") and hasattr(kind, "__next__")
    return is_iterator or (issubclass(type(value), _THROUGH) and not (type(value) is tuple and len(value) > 8))


def _is_moved_on(value: Any) -> bool:
    """Return whether an iterator counts what one of ckptkit's gives that moves the count on after a restore."""
    return type(value) is enumerate and getattr(value.__reduce__()[1][0], "moves_enumerate_on", False)


def _is_ours(value: Any) -> bool:
    """Return whether an iterator is ckptkit's, or only ckptkit's generators hold it."""
    if type(value) is types.GeneratorType and (value.gi_frame is None or not is_users_frame(value.gi_frame)):
        return True
    holders = [holder for holder in gc.get_referrers(value) if type(holder) is types.GeneratorType]
    return any(
        str(holder.gi_frame and holder.gi_frame.f_globals.get("__name__")).startswith("ckptkit.") for holder in holders
    )
