"""Reads statements in the order in which they run, the body of each loop twice.

Guarantees: as for `ckptkit.mindspore.inspect.loops`, which says what is found. Main thread only.
"""

from __future__ import annotations

import ast
import functools
import itertools
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ckptkit.mindspore.inspect.loops.branches.patterns import matches
from ckptkit.mindspore.inspect.loops.branches.present import Present
from ckptkit.mindspore.inspect.loops.calling.call import makes_cells
from ckptkit.mindspore.inspect.loops.containers import is_changed_in_place
from ckptkit.mindspore.inspect.loops.draws import Draws
from ckptkit.mindspore.inspect.loops.effects import is_ours, makes_graph
from ckptkit.mindspore.inspect.loops.expressions import Expressions
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.imports import imports
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.outside import OUTSIDE, Handles
from ckptkit.mindspore.inspect.loops.scope import (
    DATA,
    RESTORED,
    Cache,
    Place,
    Running,
    Scope,
    Sources,
    Value,
    aliases,
    is_remade,
    narrowed,
)
from ckptkit.mindspore.inspect.loops.source import TRIES, blocks_of, guards_of, reads_itself, result_of, text_of
from ckptkit.mindspore.inspect.loops.unread.libraries import Libraries


class Statements:
    """Reads functions and modules, and tells ``flow`` what they read and write.

    Args:
        flow: Records it.
        objects: Knows the objects that code names.
        libraries: Knows which functions are not the user's.
        running: The running functions with what they have now; None for those that are read by themselves.

    Attributes:
        taken: Generators and iterators that a loop draws from, by id, each with its expression.
        after: What a loop changes or draws after it has saved, in order.
        draws: Records what calls draw from.
        unread: Names of the functions of which only a part was read, in order.
        unplaced: Loops that save and begin at the same place whatever was restored, in order.
        skipping: Numbers of batches of which those are passed over that were done before the restore.
    """

    def __init__(
        self, flow: Flow, objects: Objects, libraries: Libraries, running: Mapping[types.CodeType, Running | None]
    ) -> None:
        self._flow = flow
        self._objects = objects
        self._cache: Cache | None = None  # being filled
        self._expressions = Expressions(flow, objects, libraries, running, self._block)
        self._present = Present(flow, objects, self._expressions)
        self.draws: Draws = self._expressions.calls.draws
        self.taken: dict[int, tuple[str, Any]] = self.draws.taken
        self.after: dict[str, None] = self._expressions.calls.after
        self.unread: dict[str, None] = {}
        self.unplaced: dict[str, None] = {}
        self.skipping: set[Place] = set()
        self._are_placed: list[bool] = []  # of the current loops, whether they begin where the checkpoint says

    def read(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Read the body of a function or module that is running."""
        self._expressions.begin()
        self._block(body, scope)
        self._end(scope)

    def run_with(self, hooks: Sequence[Any], threads: Sequence[Any], tasks: Sequence[Any], handles: Handles) -> None:
        """Read ``hooks`` at each call of a cell, and ``threads`` and ``tasks`` beside each loop that saves."""
        self._expressions.calls.hooks = hooks
        self._expressions.calls.beside.threads, self._expressions.calls.beside.tasks = [*threads], [*tasks]
        self.draws.outside.handles.update(handles)

    def call(self, function: Any, given: Sequence[Value], scope: Scope, most: int) -> tuple[Value | None, int]:
        """Read a function that is called; return its result, and how many expressions and statements were read.

        The result is None if the function is not the user's or has no source.
        """
        self._expressions.begin(most)
        found = self._expressions.calls.follow(function, given, {}, scope)
        self._end(scope)
        return found, most - max(self._expressions.left, 0)

    def _end(self, scope: Scope) -> None:
        if self._expressions.left <= 0:
            self.unread[scope.path.removesuffix(": ")] = None

    def _block(self, body: Iterable[ast.stmt], scope: Scope) -> list[Value]:
        """Read the statements; return what they return."""
        before, returned = self._flow.control, []
        rest = [*body]
        while rest and self._expressions.may_go_on():
            one = rest.pop(0)
            read = self._flow.read_so_far()
            returned += self._statement(one, scope)
            if isinstance(one, ast.If) and isinstance(one.body[-1], (ast.Return, ast.Continue)):
                holds = self._present.holds(one.test, scope)
                if holds is None:
                    returned += self._rest(rest, one, scope, read)
                if holds is not False:
                    break
        self._flow.control = before
        return returned

    def _rest(self, body: Sequence[ast.stmt], one: ast.If, scope: Scope, read: Collection[Place]) -> list[Value]:
        """Read what runs only where the test of ``one``, which leaves, does not hold."""
        with self._flow.quiet():
            value = self._expressions.value(one.test, scope)
        guards = guards_of(one.test, lambda each: self._expressions.places(each, scope), missing=False)
        guards = guards if is_remade(value) else []
        read = frozenset(read) - aliases(one.test, scope)
        returned: list[Value] = []
        self._flow.either(
            self._flow.decided_by(value.sources, ends=isinstance(one.body[-1], ast.Return)),
            lambda: None,
            lambda: returned.extend(self._guarded(body, scope, guards, read)),
            leaves=False,
        )
        return returned

    def _guarded(
        self,
        body: Sequence[ast.stmt],
        scope: Scope,
        guards: Sequence[Collection[Place]],
        read: Collection[Place],
        *,
        test: ast.expr | None = None,
    ) -> list[Value]:
        """Read what runs only where something is missing or of another size.

        It fills a cache if it assigns that what a later start makes again.

        Args:
            body: The statements.
            scope: Their variables.
            guards: One of each must be assigned.
            read: What was read before it was known whether it is missing: no cache.
            test: The condition, if it is one; the statements have no effect on training then.
        """
        with narrowed(test, scope, self._expressions.value):
            if all(guards) and guards:
                effects, before, saved = self._flow.effects, self._cache, self._flow.afters()
                self._cache = cache = Cache(read)
                returned = self._block(body, scope)
                self._cache = before
                fills = all(cache.filled.intersection(one) for one in guards) and not self._begins_filled(guards, cache)
                if fills and (test is None or effects == self._flow.effects):
                    return returned
                self._flow.afters(saved)
            return self._block(body, scope)

    def _begins_filled(self, guards: Iterable[Collection[Place]], cache: Cache) -> bool:
        """Return whether a resumed loop takes the cache for filled: its guards come from the checkpoint."""
        asked = set[Place]().union(*guards)
        begins = {place for place in cache.filled | asked if RESTORED in self._flow.begun(place)}
        return not begins.isdisjoint(asked) and not cache.filled <= begins

    def _statement(  # noqa: PLR0911, PLR0912 - one branch per kind reads as the table that it is
        self, one: ast.stmt, scope: Scope
    ) -> list[Value]:
        if isinstance(one, TRIES):
            return self._tries(one, scope)
        match one:
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(one, scope)
            case ast.If():
                return self._branches(one, scope)
            case ast.Match():
                return self._cases(one, scope)
            case ast.With() | ast.AsyncWith():
                return self._with(one, scope)
            case ast.Return() | ast.Break() | ast.Raise():
                return self._leaves(one, scope)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assigns(one, scope)
            case ast.Delete():
                for target in one.targets:
                    if not isinstance(target, ast.Name):
                        self._expressions.store(target, Value(), scope)
            case ast.FunctionDef():
                decorators = [each.func if isinstance(each, ast.Call) else each for each in one.decorator_list]
                # What another decorator returns is not known; what the function does is read at the call.
                if all(makes_graph(self._expressions.value(each, scope).target) for each in decorators):
                    scope.define(one, self._expressions.value)
            case ast.Import() | ast.ImportFrom():
                imports(one, scope, self._flow, self._objects)
            case ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case _:
                self._expressions.calls.changes.unused = result_of(one)
                for each in ast.iter_child_nodes(one):
                    if isinstance(each, ast.expr):
                        self._expressions.value(each, scope)
                return self._block(itertools.chain.from_iterable(blocks_of(one)), scope)
        return []

    def _with(self, one: ast.With | ast.AsyncWith, scope: Scope) -> list[Value]:
        calls = self._expressions.calls
        managers = [self._expressions.value(item.context_expr, scope) for item in one.items]
        for item, manager in zip(one.items, managers, strict=True):
            entered = calls.special(manager, "__enter__", scope)
            if item.optional_vars is not None:
                given = entered if entered != Value() else manager._replace(place=None)
                self._expressions.store(item.optional_vars, given, scope)
        returned = self._block(one.body, scope)
        for manager in reversed(managers):
            calls.special(manager, "__exit__", scope)
        return returned

    def _leaves(self, one: ast.Return | ast.Break | ast.Raise, scope: Scope) -> list[Value]:
        """Record that what ends a loop that may save steers training."""
        inside = self._expressions.calls.within_function
        ends = self._flow.innermost_saves() if isinstance(one, ast.Break) else not inside
        if isinstance(one, ast.Raise) or ends:
            self._flow.steer(self._flow.control)
        self._flow.leaves(scope, all_loops=isinstance(one, ast.Return))
        if not isinstance(one, ast.Return) or text_of(one) in ("return", "return None"):
            return []
        value = self._expressions.value(one.value, scope)  # instead of None, which depends on the same conditions
        return [value if scope.returns_one else value._replace(sources=value.sources | self._flow.control)]

    def _assigns(self, one: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: Scope) -> None:
        if one.value is None:
            return
        before = self._expressions.value(one.target, scope) if isinstance(one, ast.AugAssign) else Value()
        first = one.targets[0] if isinstance(one, ast.Assign) else one.target
        if isinstance(one.value, ast.Call) and isinstance(first, ast.Name):
            self._objects.name_call(one.value, f"{scope.path}{first.id}")
        value = self._expressions.value(one.value, scope)
        if isinstance(one, ast.AugAssign):
            value = Value(sources=before.sources | value.sources)
            if is_changed_in_place(before.target) and isinstance(one.target, ast.Name):
                self._expressions.change(one.target, value.sources, scope)
                value = value._replace(target=before.target, place=before.place)
        for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
            places = self._expressions.places(target, scope)
            self._objects.position(target, value.sources, scope)
            self._objects.stand_ins.hold(places, target, value)
            if self._cache is None or not is_remade(value) or reads_itself(one, target) or places & self._cache.read:
                self._expressions.store(target, value, scope)
            else:
                self._cache.filled |= places
                self._flow.writes |= places
                scope.fill(target, value)
                self._objects.stand_ins.fill(places, target, value)
            if isinstance(target, ast.Name) and isinstance(one.value, ast.Call):
                self._expressions.calls.made(one.value, scope.value(target.id), scope)

    def _branches(self, one: ast.If, scope: Scope) -> list[Value]:
        returned: list[Value] = []
        if self.draws.outside.makes_file(one, scope, self._expressions.value, self._block):
            return returned
        read = self._flow.read_so_far()
        test = self._expressions.test(one.test, scope)
        self._place(test)
        if (holds := self._present.holds(one.test, scope)) is not None:
            return self._block(one.body if holds else one.orelse, scope)
        # What a condition on data, or on something that the loop carries, assigns is state, whatever it looks like.
        is_steady = is_remade(test) and not makes_cells(one, test, scope, self._expressions.value)
        guards = guards_of(one.test, lambda each: self._expressions.places(each, scope)) if is_steady else []
        read -= aliases(one.test, scope)  # m = cache.get(key), and then: if m is None
        leaves = any(isinstance(each, (ast.Return, ast.Continue)) for part in (one.body, one.orelse) for each in part)
        ends = any(isinstance(each, (ast.Return, ast.Break)) for part in (one.body, one.orelse) for each in part)
        self._flow.either(
            self._flow.decided_by(test.sources, ends=ends),
            lambda: returned.extend(self._guarded(one.body, scope, guards, read, test=one.test)),
            lambda: returned.extend(self._block(one.orelse, scope)),
            leaves=leaves,
        )
        return returned

    def _tries(self, one: Any, scope: Scope) -> list[Value]:
        whole = ast.Module(one.body, [])
        asked = [each for each in ast.walk(whole) if isinstance(each, (ast.Attribute, ast.Subscript))]
        before = self._flow.read_so_far()
        returned = self._block(one.body, scope)
        # Whether there is a file decides whether the code that reads it fails.
        files = [each for each in self._flow.read_so_far() - before if each.name == OUTSIDE]
        failed = frozenset(filter(self._flow.is_carried, files))
        read = before - aliases(whole, scope)
        for handler in one.handlers:
            handle = functools.partial(self._handles, handler, asked, scope, read, returned)
            self._flow.either(failed, lambda: None, handle, leaves=False)
        return [*returned, *self._block(one.orelse, scope), *self._block(one.finalbody, scope)]

    def _handles(
        self,
        one: ast.ExceptHandler,
        asked: Sequence[ast.expr],
        scope: Scope,
        read: Collection[Place],
        returned: list[Value],
    ) -> None:
        """Read what runs where a block that asks for ``asked`` fails; add what it returns to ``returned``."""
        caught = text_of(one.type) if one.type is not None else ""
        asks = asked if caught in ("KeyError", "AttributeError", "LookupError") else []
        places = set[Place]().union(*(self._expressions.places(each, scope) for each in asks))
        returned += self._guarded(one.body, scope, [places], read)

    def _cases(self, one: ast.Match, scope: Scope) -> list[Value]:
        """Read each case as a branch, whose other branch are the cases after it."""
        returned: list[Value] = []
        subject = self._expressions.value(one.subject, scope)
        leaves = any(isinstance(each, (ast.Return, ast.Continue)) for case in one.cases for each in case.body)
        tests = self._flow.decided_by(subject.sources)

        def begin_at(number: int) -> None:
            nonlocal tests
            if number == len(one.cases):
                return
            case = one.cases[number]
            matched = matches(case.pattern, subject, scope, self._expressions)
            tests |= self._flow.decided_by(matched | self._expressions.value(case.guard, scope).sources)
            self._flow.either(
                tests,
                lambda: returned.extend(self._block(case.body, scope)),
                lambda: begin_at(number + 1),
                leaves=leaves,
            )

        begin_at(0)
        if leaves:
            self._flow.control |= tests
        return returned

    def _loop(self, one: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> list[Value]:
        returned: list[Value] = []
        decides: Sources = frozenset()
        self._flow.enter(one, scope)
        self._are_placed.append(isinstance(one, ast.While))
        for over, element in self._iterations(one, scope):
            self._place(over)
            if not isinstance(one, ast.While):
                self._are_placed[-1] |= self._objects.is_positioned(one.iter, scope)
                if RESTORED in over.sources and DATA not in over.sources:
                    self._objects.skip(one, scope)
            decides = self._flow.decided_by(over.sources, ends=True)
            self._flow.control |= decides
            if isinstance(one, ast.While):
                if self._flow.innermost_saves():
                    self._flow.steer(self._flow.control)
            else:
                # How long it goes on is not what it computes.
                given = self._flow.unlimited(element.sources) if self._flow.is_saving(one) else element.sources
                self._expressions.store(one.target, element._replace(sources=given), scope)
            returned += self._block(one.body, scope)
        is_placed = self._are_placed.pop()
        if self._are_placed:
            self._are_placed[-1] |= is_placed
        elif self._flow.has_saved() and not is_placed and isinstance(one, (ast.For, ast.AsyncFor)):
            self.unplaced[f"{scope.path}for {text_of(one.target)} in {text_of(one.iter)}"] = None
        self._flow.leave(decides)
        return returned + self._block(one.orelse, scope)

    def _place(self, value: Value) -> None:
        """Note that the current loops read where they are: in what they run over, or in a condition."""
        is_position = RESTORED in value.sources and DATA not in value.sources
        if is_position:
            self.skipping |= self._expressions.iteration.own_numbers & value.sources
        if self._are_placed and (is_position or is_ours(value.target) or self._objects.is_named(value.target)):
            self._are_placed[-1] = True

    def _read_beside(self, scope: Scope) -> None:
        """Read what others do meanwhile: where a loop of theirs begins says nothing of this one."""
        before = [*self._are_placed]
        self._expressions.calls.beside.read(scope)
        self._are_placed = before

    def _iterations(self, one: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> Iterator[tuple[Value, Value]]:
        """Start each iteration; yield what it depends on, and what the loop takes."""
        if isinstance(one, ast.While):
            self._flow.ready()
            self._read_beside(scope)
            for _ in range(2):
                self._flow.iterate()
                yield self._expressions.test(one.test, scope), Value()
            return
        over = self._expressions.value(one.iter, scope)
        self._flow.ready()
        self._read_beside(scope)
        saves = self._expressions.iteration.is_of_running(one.iter, scope)
        for element in 2 * [*self._expressions.iteration.elements(one, over, scope)]:
            self._flow.iterate(saves=saves)
            yield over, element
