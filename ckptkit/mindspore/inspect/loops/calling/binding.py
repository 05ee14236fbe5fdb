"""Binds the arguments of a call to the parameters of the called function, or to the fields of the object that it makes.

Guarantees: changes the scope of the called function and what ``flow`` knows of its parameters, and nothing else. Main
thread only.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any

from ckptkit.mindspore.inspect.attributes import UNKNOWN
from ckptkit.mindspore.inspect.loops.calling.call import Call
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.scope import (
    Scope,
    Value,
    together,
)
from ckptkit.mindspore.inspect.loops.source import text_of


def bind(
    flow: Flow,
    inside: Scope,
    function: types.FunctionType,
    given: Sequence[Value],
    named: Mapping[str | None, Value],
) -> None:
    """Bind the arguments.

    Args:
        flow: Records what the parameters are made of.
        inside: The variables of the function.
        function: What is called.
        given: Its arguments by position.
        named: Its arguments by name; those of ``**options`` together under None.
    """
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    by_default = dict(zip(names[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True))
    for name, default in {**by_default, **(function.__kwdefaults__ or {})}.items():
        inside.known[name] = Value(default)
        inside.lasting[name] = function
    _bind_rest(inside, names, given, named)
    for given_name, value in [*zip(names[: code.co_argcount], given, strict=False), *named.items()]:
        if given_name is not None and given_name in names:
            inside.lasting.pop(given_name, None)
            inside.known[given_name] = inside.assigned(given_name, value, 0)
            flow.give(inside.place(given_name), value.sources)


def bind_fields(flow: Flow, objects: Objects, call: Call, made: Any) -> None:
    """Bind the arguments of a call to the fields of a dataclass or a namespace, whose ``__init__`` has no source.

    Args:
        flow: Records what the fields are made of.
        objects: Knows the object.
        call: Of its class.
        made: The object; nothing happens if it is of another kind.
    """
    kind = type(made)
    if not dataclasses.is_dataclass(kind) and kind is not types.SimpleNamespace:
        return
    path = f"{call.scope.path}{text_of(call.node)}"
    names = getattr(kind, "__match_args__", ())
    for name, value in [*zip(names, call.given, strict=False), *call.named.items()]:
        objects.stand_ins.give(made, str(name), value.target)
        flow.write(objects.attribute_of(made, path, str(name)), value.sources, call.scope, whole=True)


def _bind_rest(inside: Scope, names: Sequence[str], given: Sequence[Value], named: Mapping[str | None, Value]) -> None:
    """Bind starred parameters, and what ``**options`` may give to any parameter."""
    code = inside.code
    others = [*code.co_varnames[len(names) :]]
    if code.co_flags & inspect.CO_VARARGS:
        rest = tuple(given[code.co_argcount :])
        inside.known[others.pop(0)] = Value(UNKNOWN, together(rest), items=rest)
    if code.co_flags & inspect.CO_VARKEYWORDS:
        inside.known[others[0]] = Value(sources=together([one for name, one in named.items() if name not in names]))
    for name in names if None in named else ():
        known = inside.known.get(name, Value())
        inside.known[name] = known._replace(sources=known.sources | named[None].sources)
