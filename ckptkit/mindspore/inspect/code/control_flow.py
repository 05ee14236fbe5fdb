"""Tells what code may run next, and which parts of it are loops, by reading its bytecode.

A jump back is not always a loop: Python 3.12 has what handles exceptions at the end of a function, and jumps back from
there to what follows the ``try`` or ``with``.

Guarantees: reads code only. An error is taken to be possible wherever code handles one. Any thread.
"""

from __future__ import annotations

import dis
import functools
import types
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping

_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_ALWAYS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")
_READS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR")
_ASSIGNS = ("STORE_NAME", "STORE_GLOBAL", "STORE_FAST")
_TRIES = ("SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH")  # of Python 3.10

_Edges = Mapping[int, list[int]]


class Flow:
    """Knows where each instruction of a code leads.

    Attributes:
        instructions: All of them.
        without_errors: The offsets of those that may run though nothing is raised.
        loops: The offsets of each loop's instructions.
    """

    def __init__(self, code: types.CodeType) -> None:
        self.instructions = list(dis.get_instructions(code))
        self._offsets = [one.offset for one in self.instructions]
        self._end = len(code.co_code)
        plain = self._plain()
        self._after = {offset: [*following] for offset, following in plain.items()}
        for offset, handler in (*self._by_table(code), *self._by_blocks(plain)):
            self._after[offset].append(handler)
        self.without_errors = _reached([0], plain)
        self.loops = [loop for loop in map(self._loop, self._back()) if loop]

    def ahead(self, position: int) -> set[int]:
        """Return the offsets of what may still run at a frame's ``f_lasti``."""
        return _reached([self._offsets[max(0, bisect_right(self._offsets, position) - 1)]], self._after)

    def assigned_anew(self, position: int) -> set[str]:
        """Return the variables that are assigned again behind a frame's ``f_lasti``, and not read before that."""
        begin = self._after[self._offsets[max(0, bisect_right(self._offsets, position) - 1)]]
        uses = {one.offset: one for one in self.instructions if one.opname in (*_READS, *_ASSIGNS)}
        found = set[str]()
        for name in {one.argval for one in uses.values() if one.opname in _ASSIGNS}:
            mine = {offset: one.opname for offset, one in uses.items() if one.argval == name}
            edges = {offset: [] if offset in mine else after for offset, after in self._after.items()}
            first = {mine[offset] for offset in _reached(begin, edges) & mine.keys()}
            found |= {name} if first and first.isdisjoint(_READS) else set()
        return found

    def ranges(self, loop: Iterable[int]) -> list[range]:
        """Return the parts of the code that instructions make up."""
        found: list[range] = []
        ends = dict(zip(self._offsets, [*self._offsets[1:], self._end], strict=True))
        for offset in sorted(loop):
            begin = found.pop().start if found and found[-1].stop == offset else offset
            found.append(range(begin, ends[offset]))
        return found

    def _plain(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for at, one in enumerate(self.instructions, 1):
            following = [] if one.opname in (*_ENDS, *_ALWAYS) else self._offsets[at : at + 1]
            jumps = one.opcode in (*dis.hasjrel, *dis.hasjabs) and one.opname not in _TRIES
            found[one.offset] = [*following, one.argval] if jumps else following
        return found

    def _by_table(self, code: types.CodeType) -> Iterator[tuple[int, int]]:
        """Yield the instructions whose errors are handled, and where; from Python 3.11 on."""
        for one in getattr(dis.Bytecode(code), "exception_entries", ()):
            begin, end = (bisect_left(self._offsets, at) for at in (one.start, one.end))
            yield from ((offset, one.target) for offset in self._offsets[begin:end])

    def _by_blocks(self, plain: _Edges) -> Iterator[tuple[int, int]]:
        """Do the same in Python 3.10, where instructions begin and end what is handled."""
        kinds = {one.offset: one for one in self.instructions}
        waiting: list[tuple[int, tuple[int, ...]]] = [(0, ())]  # with the handlers around it
        seen = set[int]()
        while waiting:
            offset, around = waiting.pop()
            if offset in seen:
                continue
            seen.add(offset)
            yield from ((offset, handler) for handler in around[-1:])
            one = kinds[offset]
            inner = around[:-1] if one.opname == "POP_BLOCK" else around
            if one.opname in _TRIES:
                waiting.append((one.argval, around))
                inner = (*around, one.argval)
            waiting += [(to, inner) for to in plain[offset]]

    def _back(self) -> list[tuple[int, int]]:
        return [(offset, to) for offset, following in self._after.items() for to in following if to <= offset]

    def _loop(self, back: tuple[int, int]) -> set[int]:
        """Return what runs between a jump back and its target; nothing if the one does not lead to the other."""
        end, begin = back
        inside = _reached([begin], self._after)
        if end not in inside:
            return set()
        before: dict[int, list[int]] = {}
        for offset in inside - {begin}:
            for to in self._after[offset]:
                before.setdefault(to, []).append(offset)
        return {begin, *_reached([end], {**before, begin: []})}


def _reached(start: Iterable[int], edges: _Edges) -> set[int]:
    waiting, found = [*start], set[int]()
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            waiting += edges.get(one, ())
    return found


@functools.lru_cache(maxsize=256)
def flow_of(code: types.CodeType) -> Flow:
    """Return the flow of ``code``; kept, since a training's loops are looked at again and again."""
    return Flow(code)
