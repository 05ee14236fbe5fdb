"""Tracks what the variables of loops are made of, through branches and between iterations.

Guarantees: only records the reads and writes that it is told of, in that order; reads no code and no object. Main
thread only.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ckptkit.mindspore.inspect.loops.scope import MARKS, RESTORED, TIMED, WEIGHTS, Place, Scope, Sources


@dataclass(eq=False)
class _Iteration:
    """Records one iteration of a loop: what it reads before writing it, and whether a checkpoint may be taken in it."""

    loop: ast.AST
    function: int  # id of the code that the loop is in
    control: Sources  # decides whether the loop runs at all
    begun: dict[Place, Sources]  # what places were made of before the loop
    assigned: set[Place] = field(default_factory=set)
    exposed: set[Place] = field(default_factory=set)
    written: set[Place] = field(default_factory=set)
    read: set[Place] = field(default_factory=set)  # in the present iteration, before any write
    again: Sources = frozenset()  # decides whether there is another iteration
    saves: bool = False
    saved: bool = False  # in some iteration, by a call of the manager
    after: bool = False  # the present iteration has saved
    is_begun: bool = False  # what it runs over was read


class Flow:
    """Tracks the places of all code that is read.

    Attributes:
        control: What decides whether the code that is read runs at all.
        effects: How many effects on training were read.
        taken: The places that got, after the restore and before any loop, what training changes.
        changed: The places that a loop writes and that its next iteration still has, in order.
        fed: The places that the code of the data reads.
        compiled: The places that compiled functions read.
        steering: The places that training depends on, in the order in which they were found.
        used: The watched names of which values are made that training gets.
        writes: The places that loops and the code of the data write.
        is_once: Whether the code that is read runs in the first iteration only, as behind a cache.
        is_beside: Whether the code that is read is that of another thread or a task.
        lasting: The ids of the code of functions that last from one iteration to the next, such as coroutines.

    Args:
        watched: Names of variables, attributes and items of which it is asked whether training depends on their values;
            what is made of the time does not count, nor conditions on it.
        limits: Those of them that may say how long to train: conditions that end a loop do not count.
    """

    def __init__(self, watched: Collection[str] = (), limits: Collection[str] = ()) -> None:
        self._watched = watched
        self._limits = limits
        self.used: set[str] = set()
        self.writes: set[Place] = set()
        self.control: Sources = frozenset()
        self.effects = 0
        self._is_quiet = False
        self._is_feeding = False
        self._is_compiled = False
        self.is_once = False
        self.is_beside = False
        self.steering: dict[Place, None] = {}
        self._made_of: dict[Place, Sources] = {}
        self._carried: set[Place] = set()
        self._passed: set[Place] = set()  # arguments of calls
        self.taken: set[Place] = set()
        self.changed: dict[Place, None] = {}
        self.fed: dict[Place, None] = {}
        self.compiled: dict[Place, None] = {}
        self._left: dict[Place, ast.AST] = {}  # what some iterations wrote, and the loop that they are of
        self._iterations: list[_Iteration] = []
        self._saving: set[ast.AST] = set()  # loops in which a checkpoint may be taken
        self.lasting: set[int] = set()

    def asked(self, item: Place | None, owner: Place | None) -> Sources:
        """Return the item if it is watched; if it is not known which one it is, all that are watched of its owner."""
        if item is None and owner is not None:
            names = (one for one in self._watched if one.startswith(f"{owner.name}["))
            return frozenset(Place(owner.within, name) for name in names)
        return frozenset((item,)) if item is not None and item.name in self._watched else frozenset()

    def unlimited(self, sources: Sources) -> Sources:
        """Return the sources that decide how long a loop runs, without the watched ones that do not count there."""
        names = self._watched if TIMED in sources else self._limits
        return frozenset(one for one in sources if one.name not in names) if names else sources

    def decided_by(self, condition: Sources, *, ends: bool = False) -> Sources:
        """Return the places of a condition that count for what runs; ``ends`` if it decides whether a loop ends."""
        if ends or TIMED in condition:
            condition = self.unlimited(condition)
        return condition - MARKS

    # Places.

    def read(self, place: Place, scope: Scope) -> Sources:
        """Record a read of a place; return what it was made of."""
        if self._is_feeding and not self._is_quiet:
            self.fed[place] = None
        if self._is_compiled and not self._is_quiet:
            self.compiled[place] = None
        for one in self._iterations if not self._is_quiet else ():
            if place not in one.assigned and self._lasts(place, one, scope):
                one.exposed.add(place)
                one.read.add(place)
        is_taken = place in self.taken and bool(self._iterations)
        is_asked = place.name in self._watched and place not in self._passed and not self.is_assigned(place)
        own = {place} if is_asked or is_taken or place in self._carried or self._is_left(place) else ()
        return self._made_of.get(place, frozenset()).union(own)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Count no read in the block: code names a place there to write all of it."""
        before, self._is_quiet = self._is_quiet, True
        yield
        self._is_quiet = before

    @contextlib.contextmanager
    def feeding(self) -> Iterator[None]:
        """Count reads in the block as those of the data."""
        self._is_feeding = True
        yield
        self._is_feeding = False

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Count no write in the block as one of the loop: another thread, which may be that of the data, makes it."""
        self.is_beside = True
        yield
        self.is_beside = False

    @contextlib.contextmanager
    def depending(self, sources: Sources) -> Iterator[None]:
        """Let what happens in the block depend on ``sources``."""
        before, self.control = self.control, self.control | sources
        yield
        self.control = before

    @contextlib.contextmanager
    def compiling(self, is_compiled: bool) -> Iterator[None]:
        """Count reads in the block as those of a compiled function, if it is one."""
        before, self._is_compiled = self._is_compiled, self._is_compiled or is_compiled
        yield
        self._is_compiled = before

    @contextlib.contextmanager
    def once(self, is_once: bool) -> Iterator[None]:
        """Let no iteration rely on what the block writes, if it runs in the first one only, as behind a cache."""
        before, self.is_once = self.is_once, self.is_once or is_once
        yield
        self.is_once = before

    def read_so_far(self) -> frozenset[Place]:
        """Return the places that the present iteration has read before it wrote them."""
        return frozenset(self._iterations[-1].read) if self._iterations else frozenset()

    def is_written(self, place: Place) -> bool:
        """Return whether all of the place was written in every current iteration."""
        return bool(self._iterations) and all(place in one.assigned for one in self._iterations)

    def is_assigned(self, place: Place) -> bool:
        """Return whether all of the place was written in the present iteration of some current loop."""
        return any(place in one.assigned for one in self._iterations)

    def write(self, place: Place, sources: Sources, scope: Scope, *, whole: bool) -> None:
        """Record a write of a place: all of it (``whole``) or a part."""
        if self._iterations or self._is_feeding:
            self.writes.add(place)
        lasting = [one for one in self._iterations if self._lasts(place, one, scope)]
        if lasting and self.is_looping():
            self.changed[place] = None
        for one in lasting:
            one.written.add(place)
            if whole and not self.is_once:
                one.assigned.add(place)
        if whole:
            self._left.pop(place, None)
        before = frozenset() if whole else self._made_of.get(place, frozenset())
        self._made_of[place] = frozenset(before | sources)

    def take(self, place: Place) -> None:
        """Record that what was written to a place was taken from what training changes."""
        if not self._iterations:
            self.taken.add(place)

    def made_of(self, kind: str) -> dict[Place, Sources]:
        """Return what was made of places with the name ``kind``, by place."""
        made = {
            place: frozenset(one for one in sources if one.name == kind) for place, sources in self._made_of.items()
        }
        return {place: sources for place, sources in made.items() if sources and place.name != kind}

    def give(self, place: Place, sources: Sources) -> None:
        """Record what an argument of a call is made of; it is not the watched variable of the same name."""
        self._made_of[place] = sources
        self._passed.add(place)

    def begin_frame(self) -> None:
        """Begin to read a running function, which has got its arguments already."""
        self._passed.clear()

    # Results.

    def steer(self, sources: Sources) -> None:
        """Record that training, or how long it goes on, depends on ``sources``."""
        self.effects += 1
        if self._watched and TIMED not in sources and self.saves():
            self.used |= {place.name for place in sources if place.name in self._watched}
        kept = {place for place in sources if place in self._carried or self._is_left(place)}
        found = sources - MARKS if self.saves() else kept
        self.steering.update(dict.fromkeys(sorted(found, key=str)))

    def _is_left(self, place: Place) -> bool:
        """Return whether the loop that wrote the place in some iterations has ended."""
        loop = self._left.get(place)
        return loop is not None and all(one.loop is not loop for one in self._iterations)

    def is_carried(self, place: Place) -> bool:
        """Return whether a loop carries the place from one iteration to the next."""
        return place in self._carried

    def carried(self) -> int:
        """Return how many places are known to be carried."""
        return len(self._carried)

    def may_save(self) -> None:
        """Record that a checkpoint may be taken in the current iterations."""
        for one in self._iterations:
            one.saves = True

    def saved(self) -> None:
        """Record that a checkpoint is taken here, or none is due."""
        for one in self._iterations:
            one.saved = True
        for one in self._iterations[-1:]:
            one.after = True

    def is_after(self) -> bool:
        """Return whether the present iteration has saved already."""
        return any(one.after for one in self._iterations)

    def afters(self, given: Sequence[bool] | None = None) -> list[bool]:
        """Return which of the current iterations have saved already, and set that to ``given``."""
        before = [one.after for one in self._iterations]
        for one, after in zip(self._iterations, before if given is None else given, strict=True):
            one.after = after
        return before

    def begun(self, place: Place) -> Sources:
        """Return what a place was made of before the innermost loop."""
        return self._iterations[-1].begun.get(place, frozenset()) if self._iterations else frozenset()

    def has_saved(self) -> bool:
        """Return whether the innermost loop saves."""
        return bool(self._iterations) and self._iterations[-1].saved

    def saves(self) -> bool:
        """Return whether a checkpoint may be taken while the variables are in their current state."""
        return any(one.loop in self._saving for one in self._iterations)

    def saves_between(self) -> bool:
        """Return whether the code that is read may run again after a checkpoint, unlike what a loop runs over."""
        return any(one.loop in self._saving and (one.is_begun or self.is_beside) for one in self._iterations)

    def is_repeated(self) -> bool:
        """Return whether the code that is read is in an iteration of a loop, and not in what a loop runs over."""
        return any(one.is_begun for one in self._iterations)

    def is_saving(self, loop: ast.AST) -> bool:
        """Return whether a checkpoint may be taken in an iteration of the loop."""
        return loop in self._saving

    def is_looping(self) -> bool:
        """Return whether the code that is read is in a loop, and not that of the data or a thread, nor compiled."""
        return bool(self._iterations) and not (self._is_feeding or self._is_compiled or self.is_beside)

    def innermost_saves(self) -> bool:
        """Return whether a checkpoint may be taken in the innermost current loop."""
        return bool(self._iterations) and self._iterations[-1].loop in self._saving

    # Branches and loops.

    def either(self, test: Sources, first: Callable[[], None], second: Callable[[], None], *, leaves: bool) -> None:
        """Follow both branches of a condition; afterwards each place has the sources that it has in either branch.

        Args:
            test: What the condition is made of.
            first: Reads one branch.
            second: Reads the other branch.
            leaves: Whether one of them leaves the block, so that the rest of the block depends on the condition too.
        """
        outside = self.control
        self.control |= test
        before, begun = [set(one.assigned) for one in self._iterations], dict(self._made_of)
        saved = self.afters()
        first()
        saved_by_first = self.afters(saved)
        after, made_by_first = [one.assigned for one in self._iterations], self._made_of
        for one, assigned in zip(self._iterations, before, strict=True):
            one.assigned = assigned
        self._made_of = dict(begun)
        second()
        self.afters([any(pair) for pair in zip(self.afters(), saved_by_first, strict=True)])
        for one, assigned in zip(self._iterations, after, strict=True):
            one.assigned &= assigned
        for place, sources in made_by_first.items():
            if sources is not begun.get(place):
                self._made_of[place] = self._made_of.get(place, frozenset()) | sources
        self._depend(test, begun)
        self.control = outside | test if leaves else outside

    def enter(self, loop: ast.AST, scope: Scope) -> None:
        """Start a loop, before the expression that it runs over is read."""
        self._iterations.append(_Iteration(loop, id(scope.code), self.control, dict(self._made_of)))

    def ready(self) -> None:
        """Discard reads and writes in the expression that the loop runs over; it is evaluated once, before the loop."""
        self._iterations[-1].exposed.clear()
        self._iterations[-1].assigned.clear()

    def iterate(self, *, saves: bool = False) -> None:
        """Start one iteration; ``saves`` says that a checkpoint may be taken where its items come from."""
        if saves:
            self.may_save()
        self._iterations[-1].assigned, self._iterations[-1].read = set(), set()
        self._iterations[-1].after, self._iterations[-1].is_begun = False, True
        self.control = self._iterations[-1].control | self._iterations[-1].again

    def leaves(self, scope: Scope, *, all_loops: bool) -> None:
        """Record that a loop of the function, or all of them, ends here under the present conditions."""
        own = [one for one in self._iterations if one.function == id(scope.code)]
        for one in own if all_loops else own[-1:]:
            one.again |= self.control - MARKS

    def leave(self, decides: Sources) -> None:
        """End a loop whose number of iterations depends on ``decides``."""
        one = self._iterations.pop()
        self.control = one.control
        self._depend(decides, one.begun)
        if not one.saves:
            return
        self._saving.add(one.loop)
        self.may_save()
        self._left.update(dict.fromkeys(one.written - one.assigned - MARKS, one.loop))
        for place in one.exposed & one.written:
            begun = one.begun.get(place, frozenset())
            is_position = RESTORED in begun and WEIGHTS not in begun
            if not is_position and TIMED not in self._made_of.get(place, ()):
                self._carried.add(place)

    def forget(self) -> None:
        """Forget what places are made of: another function is read, that nothing connects with those before."""
        self._made_of = {}

    def rounds(self, loop: ast.AST, decides: Sources, scope: Scope) -> Iterator[None]:
        """Start the iterations of a loop that is an expression; ``decides`` is what it runs over."""
        self.enter(loop, scope)
        self.ready()
        for _ in range(2):
            self.iterate()
            self.control |= decides - MARKS
            yield
        self.leave(decides - MARKS)

    def _lasts(self, place: Place, iteration: _Iteration, scope: Scope) -> bool:
        """Return whether the place exists in the next iteration too; each call of a function has new variables."""
        is_own = place.within == id(scope.code) or (
            place.within == scope.code.co_filename and place.name in scope.code.co_cellvars
        )
        return not is_own or iteration.function == id(scope.code) or id(scope.code) in self.lasting

    def _depend(self, sources: Sources, begun: Mapping[Place, Sources]) -> None:
        """Record that what was written since ``begun`` depends on ``sources``, since it might not have been written."""
        for place, now in self._made_of.items():
            if now is not begun.get(place):
                self._made_of[place] = now | sources
