"""Reads calls: what they draw, change and end, and the functions of the user's that they run.

Guarantees: as for `ckptkit.mindspore.inspect.loops`, which says what is found. Main thread only.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mindspore import nn

from ckptkit.manager.manager import CheckpointManager
from ckptkit.mindspore.inspect.attributes import UNKNOWN, in_class, owner_of
from ckptkit.mindspore.inspect.code.bytecode import closure_of, functions_in, functions_of, held_by
from ckptkit.mindspore.inspect.code.names import is_constant
from ckptkit.mindspore.inspect.loops.calling.binding import bind, bind_fields
from ckptkit.mindspore.inspect.loops.calling.call import (
    MAPS,
    MOST_ARGUMENTS,
    Call,
    changes_stored,
    given_to,
    is_seeded,
    item_or_view,
    marks_of,
    name_asked,
    rearranged,
)
from ckptkit.mindspore.inspect.loops.containers import choices
from ckptkit.mindspore.inspect.loops.draws import Draws
from ckptkit.mindspore.inspect.loops.effects import (
    CALLED_BY,
    PUTS_BACK,
    RESETS,
    REWORKS,
    computes,
    ends,
    is_compiled,
    is_draw,
    is_ours,
    makes_generator,
    only_written,
    trains,
)
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.iteration import LOOP, Reader
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.scope import (
    DATA,
    MARKS,
    Bound,
    Inline,
    Made,
    Running,
    Scope,
    Sources,
    Value,
    together,
)
from ckptkit.mindspore.inspect.loops.source import body_of, returns_one, text_of
from ckptkit.mindspore.inspect.loops.unread.answers import Answers
from ckptkit.mindspore.inspect.loops.unread.beside import Beside
from ckptkit.mindspore.inspect.loops.unread.changes import Changes
from ckptkit.mindspore.inspect.loops.unread.libraries import Libraries
from ckptkit.mindspore.inspect.users import is_users

_DEEPEST = 8  # nesting of followed calls
_MAKERS = ("jit", "grad", "value_and_grad", "vmap", "partial", "wraps")  # these give a function, and call none
_BY_ID = {id(function): name for function, name in CALLED_BY.items()}  # those of users are never compared
_FUNCTIONS = (types.FunctionType, types.MethodType, Inline)


class Calls:
    """Reads calls.

    Args:
        flow: Records what is read and written.
        objects: Knows the objects that code names.
        reader: Reads the expressions in calls.
        block: Reads the statements of a function and returns what they return.
        libraries: Knows which functions are not the user's.
        running: The running functions with what they have now; None for those that are read by themselves.

    Attributes:
        draws: Records what calls draw from.
        after: What a loop changes or draws after it has saved, in order.
        changes: Records what calls change.
        beside: Reads what runs beside the loop.
    """

    def __init__(
        self,
        flow: Flow,
        objects: Objects,
        reader: Reader,
        block: Callable[[Sequence[ast.stmt], Scope], list[Value]],
        *,
        libraries: Libraries,
        running: Mapping[types.CodeType, Running | None],
    ) -> None:
        self._flow = flow
        self._objects = objects
        self._libraries = libraries
        self._running = running
        self._reader = reader
        self._block = block
        self._functions: list[types.CodeType] = []
        self._inline: list[ast.Lambda] = []
        self._called: dict[ast.Call, Any] = {}  # by each call, what it called when it was read last
        self._yields: list[list[Value]] = []
        self.draws = Draws(flow, objects)
        self.after: dict[str, None] = {}
        self.hooks: Sequence[Any] = ()  # functions that a call of a cell also runs
        self.changes = Changes(flow, objects, reader)
        self.beside = Beside(flow, objects, reader)
        self._answers = Answers(flow, objects, self.draws.outside)

    @property
    def within_function(self) -> bool:
        """Whether the code being read is the body of a called function."""
        return bool(self._functions)

    def value(self, node: ast.Call, scope: Scope) -> Value:
        """Read a call; return what its result is made of."""
        call = self._parts(node, scope)
        self._called[node] = call.called.target
        if call.called.target is super:
            return Value(scope.parent(), call.sources)
        if is_ours(call.owner.target) and call.name in ("step", "save"):
            self._flow.saved()
        if (name := name_asked(call)) is not None:
            return self._by_name(call, name)
        if call.given and call.called.target in MAPS:
            return Value(UNKNOWN, call.sources | self._reader.iteration.mapped(call))
        bound = owner_of(call.called.target) if isinstance(node.func, ast.Name) else None
        if bound is not None:  # add = counter.add
            self._objects.path_of(bound, f"{scope.path}{text_of(node.func)}")
        self._objects.position(node.func, together(call.arguments), scope)
        is_graph = is_compiled(call.called.target)
        with (
            self._flow.compiling(is_graph),
            self._flow.once(call.cache is not None),
            self._flow.depending(call.called.sources - MARKS),
        ):
            found = self._followed(call)
        unknown = found is None  # what it does is not read, but told from its object and name
        computing = unknown and computes(call.called.target, call.owner.target, call.name)
        self._steer(call, trains=unknown and trains(call.called.target, call.name), computes=computing)
        made = call.called.target
        within = [made.function] if isinstance(made, Made) else held_by(made) if computing else []
        graphs = [call.called.target] if is_graph else filter(is_compiled, within)
        marks = marks_of(call, computes=computing).union(*(self.draws.in_graph(call, one) for one in graphs))
        if is_draw(call.called.target) or (unknown and changes_stored(call, self._objects.is_named(call.owner.target))):
            self.late(node, scope)
        held = [*self.hooks, *within] if computing else []
        for one in (*held, *(functions_in(call.owner.target) if unknown else ())):
            with self._flow.compiling(is_graph or is_compiled(one)):
                inner = self.follow(one, [Value(sources=frozenset((DATA,)))] * MOST_ARGUMENTS, {}, scope)
            self._flow.steer(inner.sources if inner is not None else frozenset())
        if found is not None:
            found = self.draws.kept(call, found)
            return found._replace(sources=found.sources | marks | (call.called.sources - MARKS))
        self.draws.of(call)
        self.beside.starts(call)
        self.beside.tells(call)
        sources = call.sources | self._functions_given(call) | self.draws.outside.of(call) | self._answers.of(call)
        known = self._new(call) or self.draws.outside.made(call, sources | marks)
        known = known or rearranged(call, sources | (marks & {DATA}))
        if known is not None:
            return known
        self.changes.of(call)
        if call.called.target is len:
            sources -= {DATA}
        elif call.name.endswith("_like") or call.name.startswith("new_"):  # of the shape of the first
            first, *others = [call.called, *call.given] if call.name.startswith("new_") else call.arguments or [Value()]
            sources = (first.sources - MARKS if DATA in first.sources else first.sources) | together(others)
        asked = _BY_ID.get(id(call.called.target)) if call.given else None
        if asked is not None:
            sources |= self.special(call.given[0], asked, scope).sources
        sources |= marks | self.draws.sources_of(call)
        return item_or_view(call, sources)

    def late(self, node: ast.expr, scope: Scope) -> None:
        """Record a change to stored state that comes after the save of the present iteration."""
        if self._flow.is_after():
            self.after[f"{scope.path}{text_of(node.func if isinstance(node, ast.Call) else node)}"] = None

    def _followed(self, call: Call) -> Value | None:
        """Follow what is called, whichever of several objects it is; None if none of them is the user's."""
        targets = [call.called.target, *call.called.also]
        if call.called.target is UNKNOWN and call.owner.target is UNKNOWN and isinstance(call.node.func, ast.Attribute):
            targets = self._objects.stand_ins.methods(call.name)
        read = [one for each in targets if (one := self.follow(each, call.given, call.named, call.scope)) is not None]
        if len(read) < 2:
            return read[0] if read else None
        target, also = choices(one.target for one in read)
        return Value(target, together(read), also=also)

    def _functions_given(self, call: Call) -> Sources:
        """Follow the functions that a call gets, and may call, such as those of a pool; return what they return."""
        found: Sources = frozenset()
        for at, value in enumerate(call.arguments):
            if not isinstance(value.target, _FUNCTIONS) or (call.name in _MAKERS and isinstance(value.target, Inline)):
                continue
            effects = self._flow.effects
            returned = self.follow(value.target, given_to(call, at), {}, call.scope)
            if call.name in _MAKERS:
                self._flow.effects = effects  # nothing runs yet
            elif returned is not None:
                found |= returned.sources
        if REWORKS.fullmatch(call.name):  # a hook, also of a tensor, returns what training goes on with
            self._flow.steer(found)
        return found

    def _by_name(self, call: Call, name: str) -> Value:
        """Read `getattr` and `setattr` with a known text, and ``get`` of what stands for the arguments of callbacks."""
        owner = call.node.func.value if isinstance(call.node.func, ast.Attribute) else call.node.args[0]
        node = ast.copy_location(ast.Attribute(owner, name, ast.Load()), call.node)
        if call.called.target is not setattr:
            return self._reader.value(node, call.scope)
        self._reader.store(node, call.given[2], call.scope)
        return Value()

    def _parts(self, node: ast.Call, scope: Scope) -> Call:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        with self._flow.quiet() if name in RESETS or self._is_told(node, scope) else contextlib.nullcontext():
            if isinstance(node.func, ast.Attribute):
                owner = self._reader.value(node.func.value, scope)
                called = self._reader.attribute(owner, node.func, scope)
            else:
                owner, called = Value(), self._reader.value(node.func, scope)
        written = only_written(called.target, node)
        given: list[tuple[ast.expr, Value]] = []
        for one in node.args:
            value = self._argument(one, scope, written=one in written)
            given += [(one, each) for each in (value.items if isinstance(one, ast.Starred) else ()) or [value]]
        named = {one.arg: self._argument(one.value, scope, written=one.value in written) for one in node.keywords}
        return Call(node, scope, name, owner, called, [one for one, _ in given], [one for _, one in given], named)

    def _is_told(self, node: ast.Call, scope: Scope) -> bool:
        """Return whether code names an object only to tell it something."""
        if node is not self.changes.unused or not isinstance(node.func, ast.Attribute):
            return False
        with self._flow.quiet():
            is_name = isinstance(node.func.value, (ast.Name, ast.Attribute))
            return is_name and self.changes.is_told(node, self._reader.value(node.func.value, scope))

    def _steer(self, call: Call, *, trains: bool, computes: bool) -> None:
        """Record what training depends on if the call trains, computes or ends it."""
        called = call.called.target
        if trains or ends(called) or self._objects.is_named(call.owner.target):
            sources = together(call.arguments) if is_seeded(call) else call.sources
            self._flow.steer(sources if call.name in PUTS_BACK else sources | self._flow.control)
        elif computes:
            self._flow.steer(call.sources)
        for place in self._objects.read_by(called, self._flow.changed) if computes else ():
            self._flow.steer(self._flow.read(place, call.scope))

    def _argument(self, node: ast.expr, scope: Scope, *, written: bool) -> Value:
        """Read an argument; ``written`` says that the call only writes it."""
        with self._flow.quiet() if written else contextlib.nullcontext():
            return self._reader.value(node, scope)

    def special(self, owner: Value, name: str, scope: Scope, *given: Value) -> Value:
        """Follow a special method of an object of the user's; return its result, without sources if it has none."""
        if outside := self.draws.outside.item(owner, name, given[0] if given else None, scope):
            return Value(sources=outside)
        method = in_class(type(owner.target), name) if self._objects.is_plain(owner.target) else None
        if type(method) is not types.FunctionType:
            return Value()
        return self.follow(types.MethodType(method, owner.target), given, {}, scope) or Value()

    def missing(self, owner: Value, node: ast.Subscript, scope: Scope) -> Sources:
        """Return what a dict gets that lacks the key, by `__missing__` or the factory of a `defaultdict`."""
        one = owner.target
        if not isinstance(one, dict):
            return frozenset()
        factory = one.default_factory if isinstance(one, collections.defaultdict) else None
        if factory is None or isinstance(factory, type):
            return self.special(owner, "__missing__", scope, Value()).sources
        found = self.follow(factory, [], {}, scope) or Value(sources=frozenset((DATA,)))
        if is_constant(factory) and not found.sources:
            return frozenset()
        self._reader.change(node.value, found.sources, scope)
        return found.sources

    def made(self, node: ast.Call, made: Value, scope: Scope) -> None:
        """Follow the ``__init__`` of an object of the user's if the call of its class has made it."""
        is_it = self._called.get(node) is type(made.target)
        if not is_it or not self._objects.is_plain(made.target) or self._objects.stand_ins.has(made.target):
            return  # for an object that stands for another one, it was followed at the call
        with self._flow.quiet():
            call = self._parts(node, scope)
        self._construct(call, made.target)

    def _construct(self, call: Call, made: Any) -> None:
        kind = type(made)
        init = in_class(kind, "__init__")
        if type(init) is types.FunctionType:
            self.follow(types.MethodType(init, made), call.given, call.named, call.scope)
        bind_fields(self._flow, self._objects, call, made)

    def _new(self, call: Call) -> Value | None:
        """Read a call that makes a loop of ours, a generator, or an object of the user's; None for other calls."""
        kind = call.called.target
        if call.name == "loop" and self._is_of_manager(call):
            self._flow.may_save()
            return Value(LOOP)
        if makes_generator(kind) and call.arguments and (self._flow.is_once or not self._flow.is_repeated()):
            return Value(self._objects.stand_ins.generator(call.node, kind), call.sources, is_new=self._flow.is_once)
        if not isinstance(kind, type) or not is_users(kind.__module__):
            return None
        made = self._objects.stand_in(call.node, kind, f"{call.scope.path}{text_of(call.node)}")
        if made is UNKNOWN:
            return None
        self._construct(call, made)
        return Value(made, call.sources)

    def _is_of_manager(self, call: Call) -> bool:
        """Return whether a method is one of ckptkit's manager, also of one that is made there."""
        owner = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
        is_made = isinstance(owner, ast.Call) and self._called.get(owner) is CheckpointManager
        return is_made or is_ours(call.owner.target)

    def yielded(self, value: Value) -> None:
        """Record what the function that is read yields; how often depends on the same conditions."""
        if self._yields:
            self._yields[-1].append(value._replace(sources=value.sources | self._flow.control))

    def follow(
        self, target: Any, given: Sequence[Value], named: Mapping[str | None, Value], scope: Scope
    ) -> Value | None:
        """Read the called function of the user's; None if it is not the user's or has no source."""
        if target is UNKNOWN or isinstance(target, (type, nn.Cell)) or len(self._functions) >= _DEEPEST:
            return None
        if isinstance(target, Inline):
            return self._inlined(target, given, named)
        if isinstance(target, Bound):
            return self.follow(target.function, [*target.given, *given], {**target.named, **named}, scope)
        if isinstance(target, functools.partial):
            bound = [self.draws.bound(target, f"argument {at}", one, scope) for at, one in enumerate(target.args)]
            by_name: dict[str | None, Value] = {}
            by_name |= {name: self.draws.bound(target, name, one, scope) for name, one in target.keywords.items()}
            return self.follow(target.func, [*bound, *given], {**by_name, **named}, scope)
        returned: list[Value] = []
        found = False
        arguments = [one.target for one in (*given, *named.values())]
        for function, instance in functions_of(target):
            if self._libraries.keep(function, instance, arguments):
                continue
            code = function.__code__
            body = body_of(code, function.__globals__) if is_users(function.__globals__.get("__name__")) else ()
            now = self._running.get(code, Running(closure_of(function), 0))
            if not body or code in self._functions or now is None:
                continue
            found = True
            inside = Scope(code, function.__globals__, scope.path, now)
            bind(self._flow, inside, function, [*([] if instance is UNKNOWN else [Value(instance)]), *given], named)
            inside.returns_one = returns_one(body)
            returned += self.run(body, inside)
        if not found:
            return None
        last = returned[-1:] if len(returned) == 1 or inside.returns_one else []
        return (last or [Value()])[0]._replace(sources=together(returned))

    def run(self, body: Sequence[ast.stmt], inside: Scope) -> list[Value]:
        """Read statements of a function that is not the one being read; return what they return or yield."""
        self._functions.append(inside.code)
        self._yields.append([])
        returned = self._block(body, inside)
        self._functions.pop()
        yields = self._yields.pop()
        return [*returned, *([Value(sources=together(yields)), Value()] if yields else [])]

    def _inlined(self, one: Inline, given: Sequence[Value], named: Mapping[str | None, Value]) -> Value | None:
        """Read the expression of a lambda where it was made."""
        if one.node in self._inline:
            return None
        names = [each.arg for each in (*one.node.args.posonlyargs, *one.node.args.args)]
        bound = one.defaults | dict(zip(names, given, strict=False)) | {str(key): each for key, each in named.items()}
        known = one.scope.known
        before = {name: known[name] for name in bound if name in known}
        known |= bound
        self._inline.append(one.node)
        returned = self._reader.value(one.node.body, one.scope)
        self._inline.pop()
        for name in bound:
            known.pop(name)
        known |= before
        return returned

    def change_by(self, method: Any, sources: Sources, scope: Scope) -> None:
        """Record what a call of a method that is not the user's changes, such as that of a list."""
        self.changes.by(method, sources, scope)
