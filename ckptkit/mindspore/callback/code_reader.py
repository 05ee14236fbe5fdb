"""Reads the code of a callback's hooks, and proves of each statement and expression that it writes no parameter.

Guarantees: as for `ckptkit.mindspore.callback.harmless_values`, which lists what may be used; raises `NotProvenError`
for all else. Main thread only.
"""

from __future__ import annotations

import ast
import builtins
import types
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import mindspore as ms

from ckptkit.mindspore.callback.harmless_values import (
    ANY,
    CONTAINER,
    FILE,
    FRESH,
    NEW_TENSOR,
    OPTIMIZER,
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
    is_output,
    item_of,
    kinds_of,
    named,
    of,
    require,
)

_MISSING = object()


class Proof(Protocol):
    """Knows the callback of which the code is a part.

    Attributes:
        knows_optimizer: Whether the optimizer is MindSpore's, with a parameter for its learning rate.
        may_end: Whether some code ends the training.
    """

    knows_optimizer: bool
    may_end: bool

    def spend(self) -> None:
        """Count an expression or a statement."""
        ...

    def attribute(self, name: str) -> Value:
        """Return what an attribute of the callback may be."""
        ...

    def set(self, name: str, value: Value) -> None:
        """Join what an attribute of the callback may be with what it gets."""
        ...

    def parent(self, within: Any, name: str) -> Value:
        """Return the method that ``super()`` gives in a method of the class ``within``."""
        ...

    def call(self, function: types.FunctionType, given: Sequence[Value], by_name: Mapping[str, Value]) -> Value:
        """Read a function of the user's; return what it returns."""
        ...


class Call:
    """Reads one call of a function, again until the kinds of its variables stay."""

    def __init__(self, proof: Proof, function: types.FunctionType, body: Sequence[ast.stmt]) -> None:
        self._proof = proof
        self._function = function
        self._body = body
        code = function.__code__
        self._names = {*code.co_varnames, *code.co_cellvars}
        self._locals: dict[str, Value] = {}
        self._is_inner = False  # within a comprehension
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
                self._tested(one.test)
                self._block([*one.body, *one.orelse])
            case ast.For():
                self._readable(one.iter)
                self._store(one.target, Value(ANY))
                self._block([*one.body, *one.orelse])
            case ast.With():
                for item in one.items:
                    value = self._value(item.context_expr)
                    require(is_output(value, FILE))
                    if item.optional_vars is not None:
                        self._store(item.optional_vars, value)
                self._block(one.body)
            case ast.Return():
                self._returned |= self._readable(one.value).kinds if one.value is not None else frozenset()
            case ast.Raise(exc=ast.Call(keywords=[]) as made, cause=None):
                require(_is_error(self._value(made.func).one))
                self._together(*made.args)
                self._proof.may_end = True
            case ast.Try():
                kinds = [part for each in one.handlers if each.type is not None for part in _parts(each.type)]
                require(all(_is_error(self._value(each).one) for each in kinds))
                require(all(each.name is None for each in one.handlers))
                inner = [each.body for each in one.handlers]
                self._block([part for each in (one.body, *inner, one.orelse, one.finalbody) for part in each])
            case ast.Assert():
                self._together(one.test, one.msg)
                self._proof.may_end = True
            case ast.Pass() | ast.Break() | ast.Continue():
                pass
            case _:
                raise NotProvenError

    def _store(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name():
                require(target.id in self._names)
                before = self._locals.get(target.id, value)
                is_same = before.one is value.one and before.owner == value.owner
                require(is_same or (before.one is None and value.one is None))
                self._locals[target.id] = value._replace(kinds=before.kinds | value.kinds)
            case ast.Attribute():
                require(self._value(target.value).kinds == {SELF})
                self._proof.set(self._mangled(target.attr), value)
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

    def _tested(self, one: ast.expr) -> None:
        """Read a condition; a file is there or not."""
        inner = one.operand if isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.Not) else one
        value = self._value(inner)
        require(value.one is None and value.kinds <= READ | OUTPUT.keys())

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
                owner, name = self._value(one.value), self._mangled(one.attr)
                require(owner.kinds != {OPTIMIZER} or self._proof.knows_optimizer)
                return self._proof.attribute(name) if owner.kinds == {SELF} else attribute_of(owner, name)
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
                self._comprehension(one.generators, one.elt)
                return of(CONTAINER)
            case ast.DictComp():
                self._comprehension(one.generators, one.key, one.value)
                return of(CONTAINER)
        raise NotProvenError

    def _comprehension(self, generators: Sequence[ast.comprehension], *made: ast.expr) -> None:
        """Read a comprehension; its variables hide others of these names within it only."""
        self._readable(generators[0].iter)
        before = self._names, self._locals, self._is_inner
        self._names, self._locals, self._is_inner = {*self._names}, {**self._locals}, True
        for each in generators:
            self._together(*([each.iter] if each is not generators[0] else []))
            inner = {part.id for part in ast.walk(each.target) if isinstance(part, ast.Name)}
            self._names |= inner
            self._locals |= dict.fromkeys(inner, Value(ANY))
            require(all(isinstance(part, (ast.Name, ast.Tuple, ast.expr_context)) for part in ast.walk(each.target)))
            self._together(*each.ifs)
        self._together(*made)
        self._names, self._locals, self._is_inner = before

    def _compared(self, one: ast.Compare) -> Value:
        """Read a comparison; ``is`` may ask about anything."""
        if all(isinstance(each, (ast.Is, ast.IsNot)) for each in one.ops):
            for each in (one.left, *one.comparators):
                self._value(each)
            return of(PLAIN)
        return Value(computed(self._together(one.left, *one.comparators)) - {CONTAINER} | {PLAIN})

    def _mangled(self, name: str) -> str:
        """Return the name that a private attribute has in its class."""
        if not name.startswith("__") or name.endswith("__"):
            return name
        require(not self._is_inner)  # another code object has the name then
        found = [one for one in self._function.__code__.co_names if one.startswith("_") and one.endswith(name)]
        require(len(found) == 1 and found != [name])
        return found[0]

    def _named(self, name: str) -> Value:
        require(not name.startswith("__") or name.endswith("__"))
        if name in self._names:
            return self._locals.get(name, Value())
        found = self._function.__globals__.get(name, vars(builtins).get(name, _MISSING))
        require(name not in self._function.__code__.co_freevars and found is not _MISSING)
        return named(found)

    def _call(self, one: ast.Call) -> Value:
        function = one.func
        if isinstance(function, ast.Attribute) and self._is_super(function.value):
            called = self._parent(function)
        else:
            called = self._value(function)
        if called.one is getattr or called.one is hasattr:
            return self._asked(one)
        if called.one is isinstance:
            return self._is_instance(one)
        starred = [each for each in one.args if isinstance(each, ast.Starred)]
        require(all(each.arg is not None for each in one.keywords))
        given = [self._value(each.value if isinstance(each, ast.Starred) else each) for each in one.args]
        by_name = {str(each.arg): self._value(each.value) for each in one.keywords}
        owner = called.owner
        self._proof.may_end |= type(called.one) is str and called.one == "request_stop"
        if owner is not None and isinstance(called.one, str):
            return self._argument(one) if owner.kinds == {PARAMS} else called_method(owner, called.one, given, by_name)
        known = called_function(called.one, given, by_name, starred=bool(starred)) if owner is None else None
        if known is not None:
            return known
        require(type(called.one) is types.FunctionType and not starred)
        return self._proof.call(called.one, [*([owner] if owner is not None else []), *given], by_name)

    def _is_super(self, one: ast.expr) -> bool:
        is_call = isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and not one.keywords
        return is_call and self._named(one.func.id).one is super  # type: ignore[attr-defined]

    def _parent(self, function: ast.Attribute) -> Value:
        """Return the method that ``super().NAME``, or ``super(CLASS, self).NAME``, gives."""
        given = function.value.args  # type: ignore[attr-defined]
        if given:
            require(len(given) == 2 and self._value(given[1]).kinds == {SELF})
            return self._proof.parent(self._value(given[0]).one, self._mangled(function.attr))
        free = dict(zip(self._function.__code__.co_freevars, self._function.__closure__ or (), strict=True))
        require("__class__" in free and self._value(ast.Name("self", ast.Load())).kinds == {SELF})
        return self._proof.parent(free["__class__"].cell_contents, self._mangled(function.attr))

    def _asked(self, one: ast.Call) -> Value:
        """Read ``getattr(cb_params, "name", 0)`` and ``hasattr``."""
        require(len(one.args) > 1 and self._value(one.args[0]).kinds == {PARAMS})
        return self._argument(ast.Call(one.func, one.args[1:], one.keywords))

    def _argument(self, one: ast.Call) -> Value:
        """Read ``cb_params.get("name")``, also with a default."""
        require(1 <= len(one.args) <= 2 and not one.keywords and isinstance(one.args[0], ast.Constant))
        return Value(argument_of_training(getattr(one.args[0], "value", None)).kinds | self._together(*one.args[1:]))

    def _is_instance(self, one: ast.Call) -> Value:
        require(len(one.args) == 2 and not one.keywords)
        self._readable(one.args[0])
        kinds = [self._value(each).one for each in _parts(one.args[1])]
        # A metaclass, or an abstract class, may ask the user's code.
        require(all(type(each) is type or each is ms.Tensor or each is ms.Parameter for each in kinds))
        return of(PLAIN)


def _parts(one: ast.expr) -> Sequence[ast.expr]:
    """Return the items of a tuple, or the expression itself."""
    return one.elts if isinstance(one, ast.Tuple) else [one]


def _is_error(one: Any) -> bool:
    is_error = issubclass(type(one), type) and issubclass(one, BaseException)
    return is_error and any(one is each for each in vars(builtins).values())
