"""Finds the variables that a running frame reads before it writes them: classic liveness on its bytecode.

Guarantees: reads code objects only. Needs nothing of MindSpore. CPython 3.10 to 3.12.
"""

from __future__ import annotations

import bisect
import dis
import functools
import inspect
import re
import types
from typing import TypeAlias

_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_ENDS |= {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"}
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
_ACCESS = re.compile(
    "(LOAD|STORE|DELETE)_(FAST|NAME|GLOBAL|DEREF|CLASSDEREF|CLOSURE|FROM_DICT_OR_DEREF|FROM_DICT_OR_GLOBALS)"
)
_CALLS = ("CALL", "YIELD")
_STATEMENT_ENDS = ("POP_", "STORE_", "DELETE_", "RESUME", "SEND", "RETURN_GENERATOR")
_OF_MODULES = frozenset({"NAME", "GLOBAL", "FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})

Access: TypeAlias = tuple[str, str, str]  # LOAD, STORE or DELETE; the scope; the name


def live_names(frame: types.FrameType) -> frozenset[str]:
    """Return the names that the continuation of a suspended frame reads before it writes them.

    What the statement under way has read already counts as read: it lies on the value stack. Any call may read what
    functions share that are defined here.
    """
    code = frame.f_code
    flow = _flow_of(code)
    index = flow.index_before(frame.f_lasti)
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    read_by_inner = frozenset[str]().union(*(code_names(part)[0] for part in inner))
    is_function = code.co_flags & inspect.CO_OPTIMIZED
    shared = frozenset(code.co_cellvars) if is_function else read_by_inner.intersection(code.co_names)
    live = _live_before(code, shared)
    names = operand_names(frame).union(*(live[at] for at in (*flow.following[index], *flow.handlers)))
    is_call = flow.instructions[index].opname.startswith(_CALLS)  # which is under way, and may still read
    return names | shared if is_call else names


def operand_names(frame: types.FrameType) -> frozenset[str]:
    """Return the names that the statement under way has read already.

    To set such a variable now does not change what this statement computes: ``total += step(next(batches))`` has
    loaded ``total`` before it asks for a batch.
    """
    flow = _flow_of(frame.f_code)
    last = flow.index_before(frame.f_lasti)
    names = set[str]()
    for index in range(last - 1, -1, -1) if flow.instructions[last].opname != "FOR_ITER" else ():
        instruction = flow.instructions[index]
        if instruction.opcode in _JUMPS or instruction.opname.startswith(_STATEMENT_ENDS):
            break
        names.update(name for _, _, name in flow.accesses[index])
    return frozenset(names)


def gathers(frame: types.FrameType) -> bool:
    """Return whether a frame makes a list, or a sum and the like, of what it asks for: that lies on no variable.

    It is a comprehension's, or a generator expression's that a function written in C goes over.
    """
    if frame.f_code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>"):
        return True
    if frame.f_code.co_name == "<genexpr>":
        return frame.f_back is not None and _instruction_of(frame.f_back).opname != "FOR_ITER"
    last = _instruction_of(frame)
    nested: list[int] = []  # where the loops within this one end; from Python 3.12 on, a comprehension is such a loop
    for instruction in _flow_of(frame.f_code).instructions if last.opname == "FOR_ITER" else ():
        if last.offset < instruction.offset < last.argval:
            nested = [end for end in nested if end > instruction.offset]
            nested += [instruction.argval] if instruction.opname == "FOR_ITER" else []
            if not nested and instruction.opname in ("LIST_APPEND", "SET_ADD", "MAP_ADD"):
                return True
    return False


def _instruction_of(frame: types.FrameType) -> dis.Instruction:
    flow = _flow_of(frame.f_code)
    return flow.instructions[flow.index_before(frame.f_lasti)]


@functools.lru_cache(maxsize=8192)
def code_names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the module and of attributes that code and the code within it read."""
    names, attributes = set[str](), set[str]()
    for instruction in dis.get_instructions(code):
        names |= {
            name for action, scope, name in _accesses_of(instruction) if action == "LOAD" and scope in _OF_MODULES
        }
        if instruction.opname in _ATTRIBUTES:
            attributes.add(instruction.argval)
        elif isinstance(instruction.argval, types.CodeType):
            inner = code_names(instruction.argval)
            names |= inner[0]
            attributes |= inner[1]
    return frozenset(names), frozenset(attributes)


def _accesses_of(instruction: dis.Instruction) -> list[Access]:
    return [(action, scope, instruction.argval) for action, scope in _ACCESS.findall(instruction.opname)]


class _Flow:
    """The control flow of one code object: by the index of an instruction, what may run next."""

    def __init__(self, code: types.CodeType) -> None:
        bytecode = dis.Bytecode(code)
        self.instructions = [step for step in bytecode if step.opname not in ("CACHE", "EXTENDED_ARG")]
        self._offsets = [step.offset for step in self.instructions]
        self.accesses = [_accesses_of(step) for step in self.instructions]
        self.following = [self._following_of(index) for index in range(len(self._offsets))]
        # Where an error may lead to, wherever it is raised; before Python 3.11, instructions tell.
        targets = [entry.target for entry in getattr(bytecode, "exception_entries", ())]
        blocks = [step for step in self.instructions if step.opcode in _JUMPS and step.opname.startswith("SETUP_")]
        targets += [step.argval for step in blocks]
        self.handlers = [*{self._index_from(target) for target in targets}]

    def index_before(self, offset: int) -> int:
        """Return the last instruction that begins at or before an offset, which may lie in its cache."""
        return max(bisect.bisect_right(self._offsets, offset) - 1, 0)

    def _index_from(self, offset: int) -> int:
        return min(bisect.bisect_left(self._offsets, offset), len(self._offsets) - 1)

    def _following_of(self, index: int) -> list[int]:
        step = self.instructions[index]
        following = [index + 1] if step.opname not in _ENDS and index + 1 < len(self._offsets) else []
        if step.opcode in _JUMPS and not step.opname.startswith("SETUP_"):
            following.append(self._index_from(step.argval))
        if index and self.instructions[index - 1].opname == "WITH_EXCEPT_START":
            following = following[:1]  # as if no ``with`` statement swallowed errors: nothing behind would be assigned
        return following


@functools.lru_cache(maxsize=4096)
def _live_before(code: types.CodeType, shared: frozenset[str]) -> list[frozenset[str]]:
    """Return the names that are live before each instruction if any call may read the shared ones."""
    flow = _flow_of(code)
    reads, writes = [], []
    for instruction, accesses in zip(flow.instructions, flow.accesses, strict=True):
        read, written, constant = set[str](), set[str](), instruction.argval
        for action, _, name in accesses:
            (written if action != "LOAD" else read).update({name} - written)
        if isinstance(constant, types.CodeType):  # a function that is made here and called
            read |= code_names(constant)[0].union(constant.co_freevars)
        elif instruction.opname.startswith(_CALLS):
            read |= shared
        reads.append(read)
        writes.append(written)
    live, is_stable = [frozenset(read) for read in reads], False
    while not is_stable:
        is_stable = True
        in_handlers = frozenset[str]().union(*(live[at] for at in flow.handlers))
        for index in range(len(live) - 1, -1, -1):
            after = frozenset[str]().union(*(live[at] for at in flow.following[index])) - writes[index]
            before = after.union(reads[index], in_handlers)
            is_stable &= before == live[index]
            live[index] = before
    return live


_flow_of = functools.lru_cache(maxsize=4096)(_Flow)
