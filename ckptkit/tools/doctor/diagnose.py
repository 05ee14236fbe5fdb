"""Finds the likely cause of a difference and what to do about it, by a list of rules, the most certain first.

Guarantees: every difference gets a diagnosis; a guess says "likely". Pure functions, any thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

from ckptkit.manager.hooks import Suspect, Unseen
from ckptkit.tools.doctor.compare import Difference, kind_of, variable_of
from ckptkit.tools.doctor.culprit import Culprit
from ckptkit.tools.doctor.trace import Stepped

# A value that was different as soon as the life had restored is lost. One that was equal then has followed what
# differs. One that was set right again before the micro-step may have been read before. A variable that did not exist
# then was most likely assigned in the loop, unless it is what the uninterrupted life had so long after its own start.
_LOST, _LOST_FIRST, _UNKNOWN, _EFFECT = range(4)
_DRAWING = ("random operator", "random cell", "cell", "graph", "function")  # what a finding of an operator is about
UNKNOWN = "unknown"
_EMPTY = Unseen(digest="", text="nothing")
_LIKE_ACCUMULATORS = ("accum", "grad", "pending")


@dataclass(frozen=True)
class Diagnosis:
    """Says why a life differs.

    Attributes:
        code: Short and stable, for programs.
        where: Name of the part of the job that causes it; may be empty.
        cause: In a sentence.
        fix: What to do.
        also: Other possible causes.
    """

    code: str
    where: str
    cause: str
    fix: str
    also: tuple[str, ...] = ()


def diagnose_disagreement(difference: Difference) -> Diagnosis:
    """Diagnose a difference between two uninterrupted lives: the job is not reproducible."""
    kind = kind_of(difference.names)
    # If generators differ while all else is equal, a thread of the pipeline draws from them. If equal batches give
    # another loss, the cause is an operator.
    fitting = "pipeline" if kind in ("batch", "rng") else "operator"
    what = "the job is not reproducible even without an interruption"
    for one in (fitting, "pipeline", "operator"):
        found = _suspected(difference, one, what)
        if found is not None:
            return found
    if kind == "rng":
        return Diagnosis(
            "racing-generator",
            difference.names[0],
            "two uninterrupted runs leave this generator in different states: a thread of its own draws from it, "
            "most likely Python code in the data pipeline",
            "let that code draw from a generator that it makes from (seed, epoch, index), such as "
            "ckptkit.data.sample_rng",
        )
    return Diagnosis(
        "not-reproducible",
        difference.names[0] if difference.names else "",
        f"two uninterrupted runs of the same script differ, first in {_first(difference)}: a checkpoint cannot help",
        "look for random numbers that do not follow from the seed: time, threads, hash order, random kernels",
    )


def diagnose_resume(difference: Difference, unstable: frozenset[str]) -> Diagnosis:
    """Diagnose a difference between a life that was saved or resumed and an uninterrupted one."""
    for rule in _RULES:
        found = rule(difference, unstable)
        if found is not None:
            return found
    return Diagnosis(
        UNKNOWN,
        difference.names[0] if difference.names else "",
        f"{_first(difference)} depends on something that no checkpoint holds and the doctor cannot see",
        "give whatever the training step reads besides its inputs and parameters state_dict() and load_state_dict(), "
        "and pass it by name: stateful={'name': it}",
    )


def forgotten(difference: Difference, unstable: frozenset[str]) -> list[str]:
    """Return the paths of unseen values that differ from the reference at that micro-step, likeliest cause first."""
    if difference.found is None:
        return []
    paths = (_differing_unseen(difference.expected, difference.found) | _lost(difference).keys()) - unstable
    causes = [path for path in paths if _standing(difference, path) != _EFFECT]
    return sorted(
        causes,
        key=lambda path: (
            _standing(difference, path),
            not _began_afresh(difference, path),
            _is_variable(path),
            path,
        ),
    )


def _rule_never_resumed(difference: Difference, _: frozenset[str]) -> Diagnosis | None:
    begun, at_first = difference.life.begun, difference.reference.begun
    if begun is None or at_first is None or difference.found is not None:
        return None
    if begun.checkpoint is not None:
        return None
    if begun.url != at_first.url:
        cause = f"the script saves to another run root at every start: {at_first.url}, then {begun.url}"
    else:
        cause = f"the script began afresh, although its run had a checkpoint after micro-step {difference.step - 1}"
    return Diagnosis(
        "never-resumed",
        begun.url,
        cause,
        "give the run a root that is the same at every start, with no time or random number in it, and do not empty it",
    )


def _rule_went_back(difference: Difference, _: frozenset[str]) -> Diagnosis | None:
    begun, held = difference.life.begun, difference.step - 1
    if begun is None or begun.checkpoint is None or difference.found is not None or begun.step >= held:
        return None
    if held in difference.life.steps and difference.step not in difference.life.steps:
        return None  # it came so far and ended there
    return Diagnosis(
        "went-back",
        begun.checkpoint,
        f"the resumed script continued from the checkpoint after micro-step {begun.step}, although there is one "
        f"after micro-step {held}",
        "let restore() choose, which takes the newest: the script must not remove, move or change a checkpoint "
        "before it. To go back on purpose, name one with checkpoint=, which later starts do not do again",
    )


def _rule_ended_late(difference: Difference, unstable: frozenset[str]) -> Diagnosis | None:
    if difference.found is None or difference.names:
        return None
    last = difference.step - 1
    named = forgotten(replace(difference, step=last, found=difference.life.steps[last]), unstable)
    return Diagnosis(
        "ended-late",
        "".join(named[:1]),
        f"the resumed script trains on after micro-step {last}, where the other one ended: no checkpoint has its end",
        "keep what ends it (patience, best values) in an object with state_dict() and load_state_dict(), given by name",
        tuple(named[1:4]),
    )


def _rule_ended_early(difference: Difference, _: frozenset[str]) -> Diagnosis | None:
    if difference.found is not None:
        return None
    return Diagnosis(
        "ended-early",
        "",
        f"the resumed script ended before micro-step {difference.step}, but the uninterrupted one reached it",
        "let the loop run to the same end however often it was resumed: count from point.epoch and point.batch",
    )


def _rule_saving(difference: Difference, _: frozenset[str]) -> Diagnosis | None:
    before = [one for one in difference.life.saved if one.step < difference.step]
    # A state_dict() may give another time or number at each call.
    saves = [one for one in before if any(kind_of([name]) != "told" or name in difference.names for name in one.moved)]
    if not saves:
        return None
    proven = [one for one in saves if one.by]
    if not proven and _suspected(difference, "pipeline", "") is not None:
        return None  # its thread may have drawn during the save
    first = (proven or saves)[0]
    who = ", ".join(first.by)
    return Diagnosis(
        "saving-changes-state",
        who or first.moved[0],
        f"saving after micro-step {first.step} changed {', '.join(first.moved[:4])}"
        + (f": state_dict() of {who} draws random numbers" if who else ", which it must leave as they are"),
        "let state_dict() only read; draw nothing in it, or from a generator that the object owns and stores",
    )


def _rule_own_saving(difference: Difference, _: frozenset[str]) -> Diagnosis | None:
    if not difference.life.own_saves or difference.resumed_at or difference.found is None:
        return None
    return Diagnosis(
        "saving-changes-state",
        "the script's own saves",
        f"nothing was resumed yet, but {_first(difference)} is another one after micro-step {difference.step} if the "
        "script's own schedule saves",
        "let the save policy, on_save and state_dict() only read; draw nothing in them",
    )


def _rule_data_elsewhere(difference: Difference, _: frozenset[str]) -> Diagnosis | None:
    if kind_of(difference.names) != "batch" or difference.found is None or not difference.resumed_at:
        return None
    other = _same_batch(difference.reference.steps, difference.found)
    if other is None:
        return None
    before = difference.reference.steps.get(other - 1)
    if other == 1 or (before is not None and before.progress.batch == 0):
        return Diagnosis(
            "data-restarted",
            "the data pipeline",
            f"after the resume, micro-step {difference.step} got the first batch of its epoch again (the one of "
            f"micro-step {other}): the loop starts the data of the epoch again",
            "let the data continue where it stopped: `for batch in ckptkit.data.resumable(dataset, epochs)` in your "
            "own loop, ckpt.train(model, epochs, dataset) with Model",
        )
    return Diagnosis(
        "data-shifted",
        "the data pipeline",
        f"after the resume, micro-step {difference.step} got the batch of micro-step {other}",
        "deliver batches only through the dataset that the state knows, one per call of the train cell",
    )


def _rule_known_pipeline(difference: Difference, _: frozenset[str]) -> Diagnosis | None:
    if kind_of(difference.names) not in ("batch", "rng"):
        return None
    return _suspected(difference, "pipeline", "the data differs after the resume")


def _rule_accumulators(difference: Difference, unstable: frozenset[str]) -> Diagnosis | None:
    if difference.found is None or _updates_each_time(difference):
        return None
    lost = {path: pair[0] for path, pair in _lost(difference).items()}
    values = {**lost, **difference.expected.unseen, **difference.found.unseen}
    named = [one for one in forgotten(difference, unstable) if _like_accumulators(one, values[one])]
    if not named or kind_of(difference.names) in ("batch", "loss"):
        return None
    return Diagnosis(
        "accumulators-left-out",
        named[0],
        f"batch and loss are equal, but the update is not: {_compared(difference, named[0])}. It likely holds "
        "gradients of the cycle under way, and is in no checkpoint",
        "train with ckptkit.AccumulationTrainCell, keep the sums in Parameters of the train cell, or pass their owner "
        "by name: stateful={'name': it}",
        tuple(named[1:4]),
    )


def _rule_known_operator(difference: Difference, _: frozenset[str]) -> Diagnosis | None:
    if kind_of(difference.names) != "loss":
        return None
    return _suspected(difference, "operator", "equal batches and weights give a different loss after the resume")


def _rule_forgotten(difference: Difference, unstable: frozenset[str]) -> Diagnosis | None:
    named = forgotten(difference, unstable)
    if not named:
        return None
    if named[0].startswith("stateful["):
        return Diagnosis(
            "incomplete-state",
            named[0],
            f"{_first(difference)} likely depends on something that its owner does not restore: "
            f"{_compared(difference, named[0])}",
            "return it from state_dict() and restore it in load_state_dict()",
            tuple(named[1:4]),
        )
    return Diagnosis(
        "forgotten-state",
        named[0],
        f"{_first(difference)} likely depends on something that is in no checkpoint: {_compared(difference, named[0])}",
        "give its owner state_dict() and load_state_dict() and pass it by name: stateful={'name': it}, or "
        "ckptkit.StateManager(cell, dataset, name=it)",
        tuple(named[1:4]),
    )


_RULES: tuple[Callable[[Difference, frozenset[str]], Diagnosis | None], ...] = (
    _rule_never_resumed,
    _rule_went_back,
    _rule_ended_late,
    _rule_ended_early,
    _rule_saving,
    _rule_own_saving,
    _rule_data_elsewhere,
    _rule_known_pipeline,
    _rule_accumulators,
    _rule_known_operator,
    _rule_forgotten,
)


def _first(difference: Difference) -> str:
    return difference.names[0] if difference.names else f"micro-step {difference.step}"


def _suspects(difference: Difference) -> tuple[Suspect, ...]:
    begun = difference.reference.begun
    return begun.suspects if begun is not None else ()


def suspect_at(difference: Difference, culprit: Culprit) -> Suspect | None:
    """Return what was found before the run of the place where lives part."""
    suspects = [one for one in _suspects(difference) if one.kind in ("operator", "pipeline")]
    if culprit.kind == "sample":
        return next((one for one in suspects if culprit.where in one.where), None)
    places = {culprit.cell, culprit.where} - {""}
    fitting = [one for one in suspects if one.kind == "operator" and one.where.partition(": ")[0] in places]
    return fitting[0] if len(fitting) == 1 and culprit.kind in _DRAWING else None


def _suspected(difference: Difference, kind: str, what: str) -> Diagnosis | None:
    suspects = _suspects(difference)
    first = next((one for one in suspects if one.kind == kind), None)
    if first is None:
        return None
    also = tuple(one.where for one in suspects if one is not first)
    return Diagnosis(f"random-{kind}", first.where, f"{what}. Likely {first.where}: {first.why}", first.fix, also)


def _differing_unseen(expected: Stepped, found: Stepped) -> set[str]:
    one, other = expected.unseen, found.unseen
    return {path for path in one.keys() | other.keys() if one.get(path) != other.get(path)}


def _lost(difference: Difference) -> dict[str, tuple[Unseen, Unseen]]:
    """Return the values that were different right after the restore: as the reference had them, and as they were."""
    begun, held = difference.life.begun, difference.reference.steps.get(difference.resumed_at)
    if begun is None or begun.unseen is None or held is None:
        return {}
    owners = {path.rpartition(".")[0] for path in begun.unseen} - {""}
    emptied = {path for path in held.unseen if path.rpartition(".")[0] in owners and _is_container(held.unseen[path])}
    now = {**dict.fromkeys(emptied, _EMPTY), **begun.unseen}  # what is empty is in no trace
    both = {path: (held.unseen[path], now[path]) for path in now.keys() & held.unseen.keys()}
    return {path: pair for path, pair in both.items() if pair[0].digest != pair[1].digest}


def _standing(difference: Difference, path: str) -> int:
    """Return how likely a value that differs is a cause and not an effect; the lower, the likelier."""
    begun, held = difference.life.begun, difference.reference.steps.get(difference.resumed_at)
    if begun is None or begun.unseen is None or held is None:
        return _UNKNOWN
    if path in _lost(difference):
        assert difference.found is not None  # noqa: S101 - as in `forgotten`
        repaired = difference.expected.unseen.get(path) == difference.found.unseen.get(path)
        return _LOST_FIRST if repaired else _LOST
    if path in begun.unseen and path in held.unseen:
        return _EFFECT
    variable = variable_of(path)
    is_made_later = variable and not any(variable_of(one) == variable for one in begun.unseen)
    return _EFFECT if is_made_later and not _began_afresh(difference, path) else _UNKNOWN


def _began_afresh(difference: Difference, path: str) -> bool:
    """Return whether the value is what the reference had as many micro-steps after its own start."""
    since = difference.step - difference.resumed_at
    early = difference.reference.steps.get(since)
    if difference.found is None or early is None or path not in early.unseen or path not in difference.found.unseen:
        return False
    return difference.found.unseen[path].digest == early.unseen[path].digest


def _is_variable(path: str) -> bool:
    """Return whether it is a bare variable of the script, such as a loop's counter, not an attribute of an object."""
    return "." not in path.rpartition(":")[2]


def _updates_each_time(difference: Difference) -> bool:
    """Return whether each micro-step of the reference changed the weights, so that there are no cycles."""
    if difference.expected.progress.accumulation_steps != 1:
        return False
    steps = [one for at, one in sorted(difference.reference.steps.items()) if at <= difference.step]
    weights = [{name: one.digests[name] for name in one.digests if name.startswith("weights/")} for one in steps]
    return all(before != after for before, after in itertools.pairwise(weights))


def _is_container(value: Unseen) -> bool:
    return value.text.partition(" of ")[2][:1].isdigit()  # "list of 5"


def _like_accumulators(path: str, value: Unseen) -> bool:
    name = path.rpartition(":")[2].rpartition(".")[2].lower()  # without a class such as GradualPruning
    return value.like_weights or ("array" in value.text and any(word in name for word in _LIKE_ACCUMULATORS))


def _same_batch(steps: dict[int, Stepped], found: Stepped) -> int | None:
    """Return the first micro-step of the reference that had the same batch."""
    batch = _batch(found)
    return next((step for step, one in sorted(steps.items()) if _batch(one) == batch), None)


def _batch(line: Stepped) -> dict[str, str]:
    return {name: digest for name, digest in line.digests.items() if name.startswith("batch/")}


def _compared(difference: Difference, path: str) -> str:
    assert difference.found is not None  # noqa: S101 - a path comes from a line
    expected, found = difference.expected.unseen.get(path), difference.found.unseen.get(path)
    if expected == found:
        expected, found = _lost(difference)[path]
    words = [one.text if one is not None else "absent" for one in (expected, found)]
    between = "another value of the same kind" if words[0] == words[1] else f"{words[0]} uninterrupted, {words[1]} here"
    return f"{path} ({between})"
