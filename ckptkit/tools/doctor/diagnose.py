"""Finds the likely cause of a difference and what to do about it, by a list of rules, the most certain first.

Guarantees: every difference gets a diagnosis; a guess says "likely". Pure functions, any thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from ckptkit.manager.hooks import READS_AHEAD, Suspect
from ckptkit.tools.doctor.compare import Difference, kind_of, same_batch
from ckptkit.tools.doctor.culprit import Culprit
from ckptkit.tools.doctor.lost import (
    compared,
    forgotten,
    like_accumulators,
    lost_of_loader,
    lost_of_named,
    lost_values,
    torn_by_save,
)

_DRAWING = ("random operator", "random cell", "cell", "graph", "function")  # what a finding of an operator is about
UNKNOWN = "unknown"
_RESTORE_IT = "return it from state_dict() and restore it in load_state_dict()"


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
    fitting = "pipeline" if kind in ("batch", "input", "rng") else "operator"
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
    for rule in _OF_VALUES if difference.names else _OF_ENDS:
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


def _rule_runs_apart(difference: Difference, unstable: frozenset[str]) -> Diagnosis | None:
    at = difference.step if difference.names else difference.step - 1  # the last one that both did, if one has ended
    expected, found = difference.reference.steps.get(at), difference.life.steps.get(at)
    if expected is None or found is None or not difference.resumed_at:
        return None
    apart = next((url for url, stood in expected.others.items() if found.others.get(url, 0) != stood), None)
    if apart is None:
        return None
    what = _first(difference) if difference.names else "where this run ends"
    return Diagnosis(
        "runs-apart",
        apart,
        f"the script trains at {apart} as well. At micro-step {at} of this run, that one stood at its "
        f"micro-step {expected.others[apart]} without an interruption and at {found.others.get(apart, 0)} after the "
        f"resume, which continues each run from a checkpoint of its own: likely {what} depends on the other run",
        "train both as one run: ckptkit.StateManager takes further train cells, networks and optimizers by name",
        tuple(forgotten(replace(difference, step=at, expected=expected, found=found), unstable)[:3]),
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


def _rule_failed(difference: Difference, unstable: frozenset[str]) -> Diagnosis | None:
    life, held = difference.life, difference.step - 1
    if difference.found is not None or not life.failed_in_training or held not in life.steps:
        return None
    expected = difference.reference.steps[held]
    named = forgotten(replace(difference, step=held, expected=expected, found=life.steps[held]), unstable)
    return Diagnosis(
        "failed-after-restore",
        "".join(named[:1]),
        f"the resumed script failed after micro-step {held}, which the uninterrupted one passed: {life.last_words(1)}"
        + (f". It may miss {named[0]}, which is in no checkpoint" if named else ""),
        "examine it again: if it fails there again, give what the failing code needs state_dict() and "
        "load_state_dict(), and pass it by name: stateful={'name': it}",
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


def _rule_torn_by_save(difference: Difference, _: frozenset[str]) -> Diagnosis | None:
    torn = torn_by_save(difference)
    if not torn:
        return None
    return Diagnosis(
        "changed-while-saved",
        torn[0],
        f"right after the restore, {torn[0]} is not what it was at the save: likely code between two micro-steps "
        "changed it while the save was being read",
        "leave a callback that writes parameters out of Training(read_only=[...]); other code calls manager.fence() "
        "before it writes",
        tuple(torn[1:4]),
    )


def _rule_lost_of_named(difference: Difference, _: frozenset[str]) -> Diagnosis | None:
    lost = lost_of_named(difference)
    if not lost:
        return None
    return Diagnosis(
        "incomplete-state",
        lost[0],
        f"right after the restore, {lost[0]} is not what it was at the save: its owner does not restore it",
        _RESTORE_IT,
        tuple(lost[1:4]),
    )


def _rule_lost_of_loader(difference: Difference, unstable: frozenset[str]) -> Diagnosis | None:
    lost = lost_of_loader(difference, unstable) if kind_of(difference.names) == "batch" else []
    if not lost:
        return None
    return Diagnosis(
        "incomplete-state",
        lost[0],
        f"{_first(difference)} likely depends on something that the loader does not restore: "
        f"{compared(difference, lost[0])}",
        _RESTORE_IT,
        tuple(lost[1:4]),
    )


def _rule_data_elsewhere(difference: Difference, _: frozenset[str]) -> Diagnosis | None:
    if kind_of(difference.names) != "batch" or difference.found is None or not difference.resumed_at:
        return None
    other = same_batch(difference.reference.steps, difference.found)
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
    lost = {path: pair[0] for path, pair in lost_values(difference).items()}
    values = {**lost, **difference.expected.unseen, **difference.found.unseen}
    steps = difference.reference.steps
    named = [one for one in forgotten(difference, unstable) if like_accumulators(one, values[one], steps)]
    if not named or kind_of(difference.names) in ("batch", "input", "loss"):
        return None
    return Diagnosis(
        "accumulators-left-out",
        named[0],
        f"batch and loss are equal, but the update is not: {compared(difference, named[0])}. It likely holds "
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
            f"{compared(difference, named[0])}",
            _RESTORE_IT,
            tuple(named[1:4]),
        )
    return Diagnosis(
        "forgotten-state",
        named[0],
        f"{_first(difference)} likely depends on something that is in no checkpoint: {compared(difference, named[0])}",
        "give its owner state_dict() and load_state_dict() and pass it by name: stateful={'name': it}, or "
        "ckptkit.StateManager(cell, dataset, name=it)",
        tuple(named[1:4]),
    )


_Rules: TypeAlias = tuple[Callable[[Difference, frozenset[str]], Diagnosis | None], ...]
_OF_ENDS: _Rules = (
    *(_rule_never_resumed, _rule_went_back, _rule_runs_apart, _rule_ended_late, _rule_failed, _rule_ended_early),
)
_OF_VALUES: _Rules = (
    _rule_saving,
    _rule_own_saving,
    _rule_runs_apart,
    _rule_torn_by_save,
    _rule_lost_of_named,
    _rule_lost_of_loader,
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
    return tuple(one for one in begun.suspects if one.kind != READS_AHEAD) if begun is not None else ()


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


def _updates_each_time(difference: Difference) -> bool:
    """Return whether each micro-step of the reference changed the weights, so that there are no cycles."""
    if difference.expected.progress.accumulation_steps != 1:
        return False
    steps = [one for at, one in sorted(difference.reference.steps.items()) if at <= difference.step]
    weights = [{name: one.digests[name] for name in one.digests if name.startswith("weights/")} for one in steps]
    return all(before != after for before, after in itertools.pairwise(weights))
