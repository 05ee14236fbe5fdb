"""Finds plain cell attributes in which a method carries state between calls; no checkpoint holds them.

Guarantees: reads code and attributes; runs no user code. Does not report assignments under a condition, by which code
caches values that it can recompute, nor assignments to an attribute that was not read before. Does not read what the
method calls, nor items. Any thread.
"""

from __future__ import annotations

import dis
import functools
import random
import types
from collections.abc import Iterator, Mapping
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.mindspore.inspect.attributes import in_class, once_per_look, own_attributes
from ckptkit.mindspore.inspect.code.bytecode import instructions_of
from ckptkit.mindspore.inspect.code.control_flow import flow_of
from ckptkit.mindspore.inspect.code.names import names_in
from ckptkit.mindspore.inspect.users import is_users

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_LOADS = ("LOAD_ATTR", "LOAD_METHOD")
# What every cell has, and what a call in GRAPH leaves in it; `test_calls_in_graph_leave_no_state` tells of more.
BARE = frozenset(vars(nn.Cell())) | {
    *("__compile_cell_hook__", "__parse_method__", "_func_graph_flags", "current_phase", "sequence_modified")
}


@once_per_look
def beside_bare(cell: nn.Cell) -> Mapping[str, Any]:
    """Return the attributes of a cell but those that every cell has."""
    return {name: one for name, one in own_attributes(cell).items() if name not in BARE}


def carried(cell: nn.Cell, method: str) -> Iterator[tuple[str, Any]]:
    """Yield the attributes with their present values, in the order of the method's code."""
    function = in_class(type(cell), method)
    if not isinstance(function, types.FunctionType) or not is_users(function.__module__):
        return
    named = _attributes_in(function.__code__)
    own = {name: one for name, one in beside_bare(cell).items() if not isinstance(one, (nn.Cell, ms.Parameter))}
    read: set[str] = set()
    anew: set[str] = set()  # assigned before they are read
    found: dict[str, Any] = {}
    for name, is_read, is_certain in named:
        if name not in own:
            continue
        if is_read and name not in anew:
            read.add(name)
            if isinstance(own[name], GENERATORS):
                found[name] = own[name]
        elif not is_read and is_certain:
            if name in read:
                found[name] = own[name]
            else:
                anew.add(name)
    yield from found.items()


@functools.lru_cache(maxsize=1_000)
def _attributes_in(code: types.CodeType) -> tuple[tuple[str, bool, bool], ...]:
    """Return the attributes that code reads or assigns, in its order: name, whether read, whether surely reached."""
    flow, found = flow_of(code), []
    behind = 0  # instructions before this offset may be jumped over
    for one in instructions_of(code):
        if one.opcode in (*dis.hasjrel, *dis.hasjabs):
            behind = max(behind, one.argval)
        if one.opname in (*_LOADS, "STORE_ATTR"):
            is_certain = one.offset >= behind and one.offset in flow.without_errors
            found.append((one.argval, one.opname in _LOADS, is_certain))
    return tuple(found)


def read_by_construct(kind: type) -> frozenset[str]:
    """Return the names in `construct` of a class, and in the methods that it names."""
    names, read = {"construct"}, set[str]()
    while names - read:
        function = in_class(kind, name := (names - read).pop())
        read.add(name)
        names |= names_in(function.__code__) if type(function) is types.FunctionType else set()
    return frozenset(read)
