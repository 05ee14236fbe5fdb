"""Finds where two records of one job part: the first call that gives another output for equal inputs.

Guarantees: what it names got equal inputs in both lives, as far as inputs are arrays and numbers. Looks at the first
micro-step whose state differs, and at what was before it only if that shows nothing. Pure functions, any thread.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ckptkit.manager.hooks import Recorded

_MAX_EXTRA = 50_000  # calls, to read batches again
_IN_EXPRESSIONS = re.compile(r"<(genexpr|lambda|listcomp|setcomp|dictcomp)>\(\)")  # these read variables around them
_ITEM = re.compile(r"\.\d+$")  # of a tuple or list that a call got
_CELLS = ("cell", "random cell", "graph")
_OF_MINDSPORE = (*_CELLS, "operator", "random operator", "function", "gradients")


@dataclass(frozen=True)
class Culprit:
    """Says where two lives part.

    Attributes:
        kind: As in `Recorded`; ``sample`` for an operation of the data pipeline, ``update`` for a parameter that was
            changed in place.
        where: Name of what gives another output.
        line: The line of the user's code that called it; may be empty.
        within: The calls around it, outermost first.
        called: Functions without Python code that were called there, and may be what gave another value.
        step: The micro-step.
        changed: The parameter that it changed in place to another value; empty if it returned another one.
        passed: What a line passes on to which call; empty for a call that returned something else.
        through: The last function of the user's inside it that returned another number; may be empty.
    """

    kind: str
    where: str
    line: str = ""
    within: tuple[Recorded, ...] = ()
    called: tuple[str, ...] = ()
    step: int = 0
    through: str = ""
    changed: str = ""
    passed: str = ""

    @property
    def cell(self) -> str:
        """The innermost cell that it is or that it is called in; may be empty."""
        cells = (one.where for one in reversed(self.within) if one.kind in _CELLS)
        return self.where if self.kind in _CELLS else next(cells, "")


def culprit_in_calls(one: Sequence[Recorded], other: Sequence[Recorded], step: int) -> Culprit | None:
    """Return what makes the calls of two lives differ; None if no call does.

    Args:
        one: Record of a life.
        other: Record of another life.
        step: The first micro-step whose state differs, or 0 if it is not known.
    """
    mine, its = ([event for event in record if event.event != "sample"] for record in (one, other))
    found = _first(_of_steps(mine, step, step), _of_steps(its, step, step)) if step else None
    if found is None or not found.where:
        found = _first(mine, its)
    return replace(found, step=step) if found is not None and found.where else None


def culprit_after_resume(one: Sequence[Recorded], other: Sequence[Recorded], begun: int, step: int) -> Culprit | None:
    """Return what gives another output after a resume, although all that it got is equal; None if no call does.

    Args:
        one: Record of an uninterrupted life.
        other: Record of a life that resumed; it may do more than the first, such as to read batches again.
        begun: The micro-step after which it resumed.
        step: The first micro-step whose state differs.
    """
    mine, its = (
        [event for event in _of_steps(record, begun + 1, step) if event.event != "sample"] for record in (one, other)
    )
    found = _first(mine, _aligned(mine, its))
    return replace(found, step=step) if found is not None and found.where else None


def _aligned(one: Sequence[Recorded], other: Sequence[Recorded]) -> list[Recorded]:
    """Return ``other`` without the calls that ``one`` does not have, as far as it gets."""
    found: list[Recorded] = []
    at = 0
    for event in one:
        same = (event.event, event.where, event.depth)
        ahead = range(at, min(len(other), at + _MAX_EXTRA))
        match = next((i for i in ahead if (other[i].event, other[i].where, other[i].depth) == same), None)
        if match is None:
            return [*found, *other[at:]]
        found.append(other[match])
        at = match + 1
    return found


def culprit_in_data(one: Sequence[Recorded], other: Sequence[Recorded]) -> Culprit | None:
    """Return the first operation of the pipeline that makes something else of an equal sample; None if none does."""
    records = [_made(record) for record in (one, other)]
    for place in sorted(records[0].keys() & records[1].keys()):
        made = [record[place] for record in records]
        for given in made[0].keys() & made[1].keys():
            fewer, more = sorted((made[0][given], made[1][given]), key=lambda counted: counted.total())
            if fewer - more:  # the reading ahead of one life may be some samples further
                return Culprit("sample", place[1])
    return None


def culprit_in_data_again(one: Sequence[Recorded], other: Sequence[Recorded]) -> Culprit | None:
    """Return the first operation of which a resumed life, ``other``, got other outputs for equal samples.

    Such a life makes some samples more often, and others less often. So it is the operation that gave it only other
    outputs for a sample; without one, that which gave it outputs for most samples that the first life never got.
    """
    records = [_made(record) for record in (one, other)]
    for differs in (_nothing_in_common, _mostly_new):
        for place in sorted(records[0].keys() & records[1].keys()):
            first, resumed = (record[place] for record in records)
            if differs([(first[given], resumed[given]) for given in first.keys() & resumed.keys()]):
                return Culprit("sample", place[1])
    return None


def _nothing_in_common(outputs: Sequence[tuple[Counter[str], Counter[str]]]) -> bool:
    return any(first.keys().isdisjoint(resumed) for first, resumed in outputs)


def _mostly_new(outputs: Sequence[tuple[Counter[str], Counter[str]]]) -> bool:
    return 2 * sum(bool(resumed.keys() - first.keys()) for first, resumed in outputs) > len(outputs)


def _made(record: Sequence[Recorded]) -> dict[tuple[int, str], dict[str, Counter[str]]]:
    """Return by operation, in the order of the pipeline, and by input, how often each output was made."""
    found: dict[tuple[int, str], dict[str, Counter[str]]] = {}
    for event in record:
        if event.event == "sample":
            made = found.setdefault((int(event.kind), event.where), {})
            made.setdefault(event.values["input"], Counter())[event.values["output"]] += 1
    return found


def _of_steps(record: Sequence[Recorded], first: int, last: int) -> list[Recorded]:
    ends = {event.where: at for at, event in enumerate(record) if event.event == "step"}
    begin = ends.get(str(first - 1))
    return [] if begin is None else list(record[begin + 1 : ends.get(str(last), len(record)) + 1])


def _first(one: Sequence[Recorded], other: Sequence[Recorded]) -> Culprit | None:
    running: list[Recorded] = []
    for at, (mine, its) in enumerate(zip(one, other, strict=False)):
        del running[mine.depth :]
        if (mine.event, mine.where, mine.depth) != (its.event, its.where, its.depth):
            return _code_at(mine, running, (mine, its))
        if mine.values != its.values:
            if mine.event == "return":
                return _returned(one[: at + 1], other[: at + 1], running)
            if mine.event == "step":
                return _in_place(one[:at], mine, its)
            return _origin(one[:at], other[:at], mine, its, running)
        if mine.event == "call":
            running.append(mine)
    return None


def _named(call: Recorded, within: tuple[Recorded, ...], called: tuple[str, ...]) -> Culprit:
    return Culprit(call.kind, call.where, call.line, within, tuple(dict.fromkeys(called)))


def _returned(one: Sequence[Recorded], other: Sequence[Recorded], running: list[Recorded]) -> Culprit:
    """Return what makes the last call return something else; the records end with its return."""
    mine, its = one[-1], other[-1]
    if mine.kind == "code" and _IN_EXPRESSIONS.search(mine.where):
        return _last_number(one[:-1], other[:-1], running) or _named(mine, tuple(running), mine.called)
    began = [at for at, event in enumerate(one[:-1]) if (event.event, event.depth) == ("call", mine.depth)]
    at = began[-1] if began else 0  # it may have begun in an earlier micro-step
    if mine.kind == "code" and began and one[at].drawn != other[at].drawn:
        return _origin(one[:at], other[:at], one[at], other[at], running)
    found = _named(mine, tuple(running), (*mine.called, *its.called))
    return replace(found, through=_drawn_inside(one[:-1], other[:-1], mine))


def _origin(
    one: Sequence[Recorded],
    other: Sequence[Recorded],
    mine: Recorded,
    its: Recorded,
    running: list[Recorded],
) -> Culprit:
    """Return what made the number that a call got.

    If none was passed on as it was, this is the last function of the user's that gave or got another number; without
    one, the line of the user's code.
    """
    given, its_given = (mine.values, its.values) if mine.values != its.values else (mine.drawn, its.drawn)
    pairs = {(given[name], its_given.get(name)) for name in given} - {(digest, digest) for digest in given.values()}
    for at in reversed(range(len(one))):
        first, second = one[at], other[at]
        drawn = {(digest, second.drawn.get(name)) for name, digest in first.drawn.items()}
        if first.event == "return" and first.kind in ("code", "random") and drawn & pairs:
            return _named(first, tuple(running), (*first.called, *second.called))
        if _is_around(first, running) and drawn & pairs:
            return _origin(one[:at], other[:at], first, second, running[: first.depth])
    names = sorted(name for name in given if given[name] != its_given.get(name))
    plain = list(dict.fromkeys(_ITEM.sub("", name) for name in names))
    passed = f"{', '.join(plain[:2])} of {mine.where}" if mine.event == "call" else ""
    return _last_number(one, other, running) or replace(_code_at(mine, running, (mine, its)), passed=passed)


def _last_number(one: Sequence[Recorded], other: Sequence[Recorded], running: list[Recorded]) -> Culprit | None:
    """Return the last function of the user's that gave another number, or what gave the one that it got."""
    for at in reversed(range(len(one))):
        first, second = one[at], other[at]
        if first.kind == "code" and first.drawn != second.drawn:
            if first.event == "return":
                return _named(first, tuple(running), (*first.called, *second.called))
            if _is_around(first, running):
                return _origin(one[:at], other[:at], first, second, running[: first.depth])
    return None


def _is_around(call: Recorded, running: list[Recorded]) -> bool:
    return call.event == "call" and call.depth < len(running) and running[call.depth] is call


def _drawn_inside(one: Sequence[Recorded], other: Sequence[Recorded], call: Recorded) -> str:
    for mine, its in zip(reversed(one), reversed(other), strict=True):
        if mine.depth <= call.depth:
            break
        if mine.event == "return" and mine.drawn != its.drawn:
            return mine.where
    return ""


def _code_at(call: Recorded, running: list[Recorded], both: tuple[Recorded, Recorded]) -> Culprit:
    """Return the line of the user's code that calls: what it does itself, without a recorded call, differs."""
    called = tuple(dict.fromkeys(name for one in both for name in one.called))
    return Culprit("code", call.line, call.line, tuple(running), called)


def _in_place(before: Sequence[Recorded], mine: Recorded, its: Recorded) -> Culprit:
    """Return what changed a parameter in place, or the parameter if no call can have done it.

    What an object given by name holds may be a number, which no graph changes.
    """
    both = mine.values.keys() | its.values.keys()
    names = sorted(name for name in both if mine.values.get(name) != its.values.get(name))
    changed = names[0] if names else ""
    graph = next((one for one in reversed(before) if one.kind == "graph"), None)
    if graph is not None and not changed.startswith(("named/", "told/")):
        return replace(_named(graph, (), ()), changed=changed)
    last = next((one for one in reversed(before) if one.depth == 0 and one.kind in _OF_MINDSPORE), None)
    return Culprit("update", changed, last.line if last is not None else "", changed=changed)
