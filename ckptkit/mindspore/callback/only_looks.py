"""Proves of a callback that it only looks: at the step, the loss and the clock, and at what it keeps itself.

Guarantees: yes means that none of its hooks writes a parameter, as far as the assumptions of
`ckptkit.mindspore.callback.harmless` hold and nobody changes its class, or gives it other objects, later; no means
that this is not known. Reads source and objects, and runs nothing of the user's. Main thread only.
"""

from __future__ import annotations

import ast
import builtins
import types
from collections.abc import Mapping, Sequence
from typing import Any

from mindspore.train import Callback

from ckptkit.mindspore.callback.harmless import (
    ANY,
    CONTAINER,
    CONTEXT,
    FILE,
    FRESH,
    NEW_TENSOR,
    OUTPUT,
    PARAMS,
    PLAIN,
    READ,
    SELF,
    NotProvenError,
    Value,
    argument_of_training,
    attribute_of,
    called_function,
    called_method,
    computed,
    item_of,
    kinds_of,
    named,
    of,
    require,
)
from ckptkit.mindspore.inspect.attributes import is_users, own_attributes
from ckptkit.mindspore.inspect.loops.source import compiled_body_of

_DEEPEST = 6  # nesting of followed calls
_MOST = 20_000  # expressions and statements that are read
_MISSING = object()
_NOT_READ = 0x04 | 0x08 | 0x20 | 0x80 | 0x200  # flags of code: *args, **kwargs, generators, coroutines


def only_looks(callback: Callback) -> bool:
    """Return whether the hooks of ``callback`` are proven to write no parameter."""
    try:
        _Proof(callback).read()
    except NotProvenError:
        return False
    return True


class _Proof:
    """Reads all hooks of one callback, again until the kinds of its attributes stay."""

    def __init__(self, callback: Callback) -> None:
        self._classes = type(callback).__mro__
        self._own = own_attributes(callback)
        self._kinds: dict[str, frozenset[str]] = {}  # of the attributes that are read or written
        self._functions: list[types.CodeType] = []
        self._left = _MOST

    def read(self) -> None:
        """Read the hooks; NotProvenError if one of them is not known to write nothing."""
        users = [one for one in self._classes if one not in (Callback, object)]
        require(all(is_users(one.__module__) and "__slots__" not in vars(one) for one in users))
        special = ("__setattr__", "__getattribute__", "__getattr__", "__enter__", "__exit__")
        require(not any(name in vars(one) for name in special for one in users))
        hooks = [name for name, one in vars(Callback).items() if type(one) is types.FunctionType and name[0] != "_"]
        methods = [self._method(self._classes, name) for name in hooks]
        before: dict[str, frozenset[str]] | None = None
        while before != self._kinds:
            before = dict(self._kinds)
            for method in methods:
                self.call(method, [of(SELF), of(CONTEXT)], {})
        require(all(self._kinds.values()))  # one that no hook assigns, and that is not there, gets its value elsewhere

    def _method(self, classes: Sequence[type], name: str) -> types.FunctionType:
        require(name not in self._own)
        found = _in_class(classes, name)
        if type(found) is not types.FunctionType:
            raise NotProvenError
        return found

    def spend(self) -> None:
        """Count an expression or a statement."""
        self._left -= 1
        require(self._left > 0)

    def attribute(self, name: str) -> Value:
        """Return what an attribute of the callback may be."""
        in_class = _in_class(self._classes, name)
        if name not in self._own and name not in self._kinds and in_class is not _MISSING:
            if type(in_class) is types.FunctionType:
                return Value(one=in_class, owner=of(SELF))
            if type(in_class) is staticmethod:
                return named(in_class.__func__)
        self._begin(name)
        return Value(self._kinds[name])

    def set(self, name: str, value: Value) -> None:
        """Join what an attribute of the callback may be with what it gets."""
        found = _in_class(self._classes, name)
        require(found is _MISSING or not any(hasattr(type(found), one) for one in ("__get__", "__set__", "__delete__")))
        require(value.one is None and value.kinds <= READ | OUTPUT.keys())
        self._begin(name)
        self._kinds[name] |= value.kinds

    def _begin(self, name: str) -> None:
        if name not in self._kinds:
            now = self._own.get(name, _in_class(self._classes, name))
            self._kinds[name] = frozenset() if now is _MISSING else kinds_of(now)

    def parent(self, within: Any, name: str) -> Value:
        """Return the method that ``super()`` gives in a method of the class ``within``."""
        require(within in self._classes)
        return Value(one=self._method(self._classes[self._classes.index(within) + 1 :], name), owner=of(SELF))

    def call(self, function: types.FunctionType, given: Sequence[Value], by_name: Mapping[str, Value]) -> Value:
        """Read a function of the user's; return what it returns."""
        if vars(Callback).get(function.__name__) is function:
            return of(PLAIN)  # does nothing, or calls another hook
        code = function.__code__
        require(code.co_flags & _NOT_READ == 0 and is_users(function.__globals__.get("__name__")))
        require(code not in self._functions and len(self._functions) < _DEEPEST)
        body = compiled_body_of(function)
        require(bool(body))
        self._functions.append(code)
        returned = _Call(self, function, body).run(given, by_name)
        self._functions.pop()
        return returned


class _Call:
    """Reads one call of a function, again until the kinds of its variables stay."""

    def __init__(self, proof: _Proof, function: types.FunctionType, body: Sequence[ast.stmt]) -> None:
        self._proof = proof
        self._function = function
        self._body = body
        code = function.__code__
        self._names = {*code.co_varnames, *code.co_cellvars}
        self._locals: dict[str, Value] = {}
        self._returned: frozenset[str] = frozenset((PLAIN,))

    def run(self, given: Sequence[Value], by_name: Mapping[str, Value]) -> Value:
        """Return what the call returns."""
        code, function = self._function.__code__, self._function
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        require(len(given) <= code.co_argcount and by_name.keys() <= set(parameters) and not code.co_posonlyargcount)
        defaults = function.__defaults__ or ()
        late = dict(zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True))
        for name, one in {**late, **(function.__kwdefaults__ or {})}.items():
            self._locals[name] = Value(kinds_of(one))
        self._locals |= dict(zip(parameters, given, strict=False)) | dict(by_name)
        require(all(name in self._locals for name in parameters))
        before = None
        while before != (self._locals, self._returned):
            before = dict(self._locals), self._returned
            self._block(self._body)
        return Value(self._returned)

    # Statements.

    def _block(self, body: Sequence[ast.stmt]) -> None:
        for one in body:
            self._proof.spend()
            self._statement(one)

    def _statement(self, one: ast.stmt) -> None:  # noqa: PLR0912 - one branch per kind reads as the table that it is
        match one:
            case ast.Expr():
                self._value(one.value)
            case ast.Assign():
                value = self._value(one.value)
                for target in one.targets:
                    self._store(target, value)
            case ast.AnnAssign(value=ast.expr() as given):
                self._store(one.target, self._value(given))
            case ast.AugAssign():
                self._augment(one)
            case ast.If() | ast.While():
                self._readable(one.test)
                self._block([*one.body, *one.orelse])
            case ast.For():
                self._readable(one.iter)
                self._store(one.target, Value(ANY))
                self._block([*one.body, *one.orelse])
            case ast.With():
                for item in one.items:
                    value = self._value(item.context_expr)
                    require(value.kinds == {FILE})
                    if item.optional_vars is not None:
                        self._store(item.optional_vars, value)
                self._block(one.body)
            case ast.Return():
                self._returned |= self._readable(one.value).kinds if one.value is not None else frozenset()
            case ast.Raise(exc=ast.Call(keywords=[]) as made, cause=None):
                kind = self._value(made.func).one
                require(isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__ == "builtins")
                for each in made.args:
                    self._readable(each)
            case ast.Pass() | ast.Break() | ast.Continue():
                pass
            case _:
                raise NotProvenError

    def _store(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name():
                require(target.id in self._names)
                before = self._locals.get(target.id, value)
                require(before == value or (before.one is None and value.one is None))
                self._locals[target.id] = value._replace(kinds=before.kinds | value.kinds)
            case ast.Attribute():
                require(self._value(target.value).kinds == {SELF})
                self._proof.set(target.attr, value)
            case ast.Subscript():
                owner = self._value(target.value)
                require(owner.one is None and owner.kinds <= {CONTAINER, FRESH} and value.is_readable)
                self._readable(target.slice)
            case ast.Tuple() | ast.List():
                require(value.is_readable)
                for each in target.elts:
                    self._store(each, Value(ANY))
            case _:
                raise NotProvenError

    def _augment(self, one: ast.AugAssign) -> None:
        """Read ``a += b``, which writes to ``a`` in place if it is an array or a tensor."""
        before, value = self._value(one.target), self._readable(one.value)
        require(before.one is None and before.kinds <= {PLAIN, FRESH, NEW_TENSOR, CONTAINER})
        self._store(one.target, Value(computed(before.kinds | value.kinds)))

    # Expressions.

    def _readable(self, one: ast.expr) -> Value:
        value = self._value(one)
        require(value.is_readable)
        return value

    def _together(self, *parts: ast.expr | None) -> frozenset[str]:
        """Return the kinds of expressions that may be computed with."""
        return frozenset[str]().union(*(self._readable(one).kinds for one in parts if one is not None))

    def _value(self, one: ast.expr) -> Value:  # noqa: PLR0911, PLR0912 - one branch per kind, as in a table
        self._proof.spend()
        match one:
            case ast.Constant():
                return of(PLAIN)
            case ast.Name():
                return self._named(one.id)
            case ast.Attribute():
                owner = self._value(one.value)
                return self._proof.attribute(one.attr) if owner.kinds == {SELF} else attribute_of(owner, one.attr)
            case ast.Subscript():
                owner = self._value(one.value)
                if owner.kinds == {PARAMS}:
                    return argument_of_training(getattr(one.slice, "value", None))
                self._readable(one.slice)
                return item_of(owner)
            case ast.Call():
                return self._call(one)
            case ast.BinOp():
                return Value(computed(self._together(one.left, one.right)))
            case ast.UnaryOp():
                kinds = self._together(one.operand)
                return Value(kinds if isinstance(one.op, ast.UAdd) else computed(kinds))  # +x is x, of a tensor
            case ast.Compare():
                return self._compared(one)
            case ast.BoolOp():
                return Value(self._together(*one.values))
            case ast.IfExp():
                self._readable(one.test)
                return Value(self._together(one.body, one.orelse))
            case ast.JoinedStr():
                self._together(*one.values)
                return of(PLAIN)
            case ast.FormattedValue():
                self._together(one.value, one.format_spec)
                return of(PLAIN)
            case ast.Tuple() | ast.List() | ast.Set():
                self._together(*(each.value if isinstance(each, ast.Starred) else each for each in one.elts))
                return of(CONTAINER)
            case ast.Dict():
                self._together(*one.keys, *one.values)
                return of(CONTAINER)
            case ast.Slice():
                self._together(one.lower, one.upper, one.step)
                return of(PLAIN)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                self._comprehension(one.generators)
                self._readable(one.elt)
                return of(CONTAINER)
        raise NotProvenError

    def _comprehension(self, generators: Sequence[ast.comprehension]) -> None:
        """Bind the variables of a comprehension, as if they were the function's own."""
        for each in generators:
            self._readable(each.iter)
            self._names |= {part.id for part in ast.walk(each.target) if isinstance(part, ast.Name)}
            self._store(each.target, Value(ANY))
            self._together(*each.ifs)

    def _compared(self, one: ast.Compare) -> Value:
        """Read a comparison; ``is`` may ask about anything."""
        if all(isinstance(each, (ast.Is, ast.IsNot)) for each in one.ops):
            for each in (one.left, *one.comparators):
                self._value(each)
            return of(PLAIN)
        return Value(computed(self._together(one.left, *one.comparators)) - {CONTAINER} | {PLAIN})

    def _named(self, name: str) -> Value:
        if name in self._names:
            return self._locals.get(name, Value())
        found = self._function.__globals__.get(name, vars(builtins).get(name, _MISSING))
        require(name not in self._function.__code__.co_freevars and found is not _MISSING)
        return named(found)

    def _call(self, one: ast.Call) -> Value:
        function = one.func
        if ast.unparse(function).startswith("super()."):
            require(isinstance(function, ast.Attribute) and self._named("super").one is super)
            free = dict(zip(self._function.__code__.co_freevars, self._function.__closure__ or (), strict=True))
            require("__class__" in free and ast.unparse(function).count(".") == 1)
            called = self._proof.parent(free["__class__"].cell_contents, ast.unparse(function).partition(".")[2])
        else:
            called = self._value(function)
        if called.one is isinstance:
            return self._is_instance(one)
        starred = [each for each in one.args if isinstance(each, ast.Starred)]
        require(all(each.arg is not None for each in one.keywords))
        given = [self._value(each.value if isinstance(each, ast.Starred) else each) for each in one.args]
        by_name = {str(each.arg): self._value(each.value) for each in one.keywords}
        owner = called.owner
        if owner is not None and isinstance(called.one, str):
            return self._argument(one) if owner.kinds == {PARAMS} else called_method(owner, called.one, given, by_name)
        known = called_function(called.one, given, by_name) if owner is None else None
        if known is not None:
            require(not starred or known.kinds != {FRESH})
            return known
        require(type(called.one) is types.FunctionType and not starred)
        return self._proof.call(called.one, [*([owner] if owner is not None else []), *given], by_name)

    def _argument(self, one: ast.Call) -> Value:
        """Read ``cb_params.get("name")``, also with a default."""
        require(1 <= len(one.args) <= 2 and not one.keywords and isinstance(one.args[0], ast.Constant))
        return Value(argument_of_training(getattr(one.args[0], "value", None)).kinds | self._together(*one.args[1:]))

    def _is_instance(self, one: ast.Call) -> Value:
        require(len(one.args) == 2 and not one.keywords)
        self._readable(one.args[0])
        kinds = one.args[1].elts if isinstance(one.args[1], ast.Tuple) else [one.args[1]]
        require(all(isinstance(self._value(each).one, type) for each in kinds))
        return of(PLAIN)


def _in_class(classes: Sequence[type], name: str) -> Any:
    return next((vars(one)[name] for one in classes if name in vars(one)), _MISSING)
