"""Finds the likely cause of a difference and what to do about it, by a list of rules, the most certain first.

Guarantees: every difference gets a diagnosis; a guess says "likely". Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ckptkit.manager.hooks import LOADER
from ckptkit.tools.doctor.compare import TraceDifference, kind_of, same_batch
from ckptkit.tools.doctor.lost_values import causes, compared, lost, lost_of_named, torn_by_save

_RESTORE_IT = "return it from state_dict() and restore it in load_state_dict()"
_GIVE_IT = (
    "keep it in an object with state_dict() and load_state_dict(), and pass that by name: stateful={'name': it}, or "
    "ckptkit.StateManager(cell, dataset, name=it)"
)


@dataclass(frozen=True)
class Diagnosis:
    """Says why a life differs."""

    code: str  # short and stable, for programs
    where: str  # name of the part of the job that causes it; may be empty
    cause: str  # in a sentence
    fix: str
    also: tuple[str, ...] = ()  # other possible causes


def diagnose_disagreement(difference: TraceDifference) -> Diagnosis:
    """Diagnose a difference between two uninterrupted lives: the job is not reproducible."""
    kind = kind_of(difference.names)
    # If generators differ while all else is equal, a thread of the pipeline draws from them. If equal batches give
    # another loss, the cause is an operator.
    fitting = "pipeline" if kind in ("batch", "input", "rng") else "operator"
    what = "the job is not reproducible even without an interruption"
    for suspect_kind in (fitting, "pipeline", "operator"):
        if (diagnosis := _suspected(difference, suspect_kind, what)) is not None:
            return diagnosis
    return Diagnosis(
        "not-reproducible",
        difference.names[0] if difference.names else "",
        f"two uninterrupted runs of the same script differ, first in {_first(difference)}: a checkpoint cannot help",
        "look for random numbers that do not follow from the seed: time, threads, hash order, random kernels. Let code "
        "in the data pipeline draw from a generator made from (seed, epoch, index), as by ckptkit.data.sample_rng",
    )


def diagnose_resume(difference: TraceDifference, unstable: frozenset[str]) -> Diagnosis:
    """Diagnose a difference between a life that was saved or resumed and an uninterrupted one."""
    if not difference.names:
        return _never_resumed(difference) or _ends_elsewhere(difference, unstable)
    for rule in _RULES:
        if (diagnosis := rule(difference, unstable)) is not None:
            return diagnosis
    return Diagnosis(
        "unknown",
        difference.names[0],
        f"{_first(difference)} depends on something that no checkpoint holds and the doctor cannot see",
        "give whatever the training step reads besides its inputs and parameters state_dict() and load_state_dict(), "
        "and pass it by name: stateful={'name': it}",
    )


def diagnose_unequal_replica(difference: TraceDifference) -> Diagnosis:
    """Diagnose a value that must be the same in every rank, and differs from rank 0's."""
    first = difference.names[0]
    return Diagnosis(
        "not-reproducible",
        first,
        f"{first} must be the same in every rank, and rank {difference.rank} has another one than rank 0, without an "
        "interruption: a checkpoint would hold a part of each",
        "initialise every rank alike (ms.set_seed before the network is built), let only the update change what ranks "
        "share, or declare it a rank's own with Ranks(placement=...)",
        difference.names[1:4],
    )


def _never_resumed(difference: TraceDifference) -> Diagnosis | None:
    life, at_first, held = difference.life, difference.reference.begun, difference.step - 1
    if life.begun is None or at_first is None or difference.found is not None or life.begun.step >= held:
        return None
    if held in life.steps and difference.step not in life.steps:
        return None  # it came so far and ended there
    begun = life.begun
    if begun.checkpoint is not None:
        cause = (
            f"the resumed script continued from the checkpoint after micro-step {begun.step}, although there is one "
            f"after micro-step {held}"
        )
    elif begun.url != at_first.url:
        cause = f"the script saves to another run root at every start: {at_first.url}, then {begun.url}"
    else:
        cause = f"the script began afresh, although its run had a checkpoint after micro-step {held}"
    return Diagnosis(
        "never-resumed",
        begun.checkpoint or ", ".join([begun.url, *begun.mirrors]),
        cause,
        "give the run a root, and mirrors, that are the same at every start, with no time or random number in them, "
        "and let restore() choose the newest checkpoint: the script must not remove, move or change one before it",
    )


def _ends_elsewhere(difference: TraceDifference, unstable: frozenset[str]) -> Diagnosis:
    life, last = difference.life, difference.step - 1
    late = difference.found is not None
    named = [*causes(replace(difference, step=last) if late else difference, unstable)]
    if late:
        cause = f"the resumed script trains on after micro-step {last}, where the other one ended"
    elif life.failed_in_training and last in life.steps:
        cause = (
            f"the resumed script failed after micro-step {last}, which the uninterrupted one passed: "
            f"{life.last_words(1)}"
        )
    else:
        cause = f"the resumed script ended before micro-step {last + 1}, but the uninterrupted one reached it"
    return Diagnosis(
        "ends-elsewhere",
        "".join(named[:1]),
        f"{cause}. It may miss {named[0]}, which is in no checkpoint" if named else cause,
        "let the loop run to the same end however often it was resumed: count from point.epoch and point.batch, and "
        "keep what ends it (patience, best values), or what the failing code needs, in an object with state_dict() "
        "and load_state_dict(), given by name",
        tuple(named[1:4]),
    )


def _rule_saving(difference: TraceDifference, _: frozenset[str]) -> Diagnosis | None:
    before = [save for save in difference.life.saved if save.step < difference.step]
    # A state_dict() may give another time or number at each call.
    saves = [
        save for save in before if any(kind_of([name]) != "told" or name in difference.names for name in save.moved)
    ]
    if not saves:
        return None
    proven = [save for save in saves if save.by]
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


def _rule_own_saving(difference: TraceDifference, _: frozenset[str]) -> Diagnosis | None:
    if not difference.life.own_saves or difference.resumed_at or difference.found is None:
        return None
    return Diagnosis(
        "saving-changes-state",
        "the script's own saves",
        f"nothing was resumed yet, but {_first(difference)} is another one after micro-step {difference.step} if the "
        "script's own schedule saves",
        "let the save policy, on_save and state_dict() only read; draw nothing in them",
    )


def _rule_torn_by_save(difference: TraceDifference, _: frozenset[str]) -> Diagnosis | None:
    torn = torn_by_save(difference)
    if not torn:
        return None
    return Diagnosis(
        "saving-changes-state",
        torn[0],
        f"right after the restore, {torn[0]} is not what it was at the save: likely code between two micro-steps "
        "changed it while the save was being read",
        "leave a callback that writes parameters out of Training(read_only=[...]); other code calls manager.fence() "
        "before it writes",
        tuple(torn[1:4]),
    )


def _rule_lost_of_named(difference: TraceDifference, _: frozenset[str]) -> Diagnosis | None:
    paths = lost_of_named(difference)
    what = "right after the restore, {} is not what it was at the save: its owner does not restore it"
    return _forgotten(paths, what.format(*paths[:1]), _RESTORE_IT) if paths else None


def _rule_lost_of_loader(difference: TraceDifference, unstable: frozenset[str]) -> Diagnosis | None:
    values = lost(difference.life, difference.reference, unstable)
    is_first = difference.step == difference.resumed_at + 1  # where its place differs with the batch
    paths = [path for path in values if path.startswith(LOADER)]
    paths = [path for path in paths if not is_first or values[path][0].startswith("generator ")]
    if kind_of(difference.names) != "batch" or not paths:
        return None
    what = f"something that the loader does not restore: {compared(paths[0], values[paths[0]])}"
    return _forgotten(paths, f"{_first(difference)} likely depends on {what}", _RESTORE_IT)


def _rule_data_elsewhere(difference: TraceDifference, _: frozenset[str]) -> Diagnosis | None:
    if kind_of(difference.names) != "batch" or difference.found is None or not difference.resumed_at:
        return None
    other = same_batch(difference.reference.steps, difference.found)
    if other is None:
        return None
    before = difference.reference.steps.get(other - 1)
    begins = other == 1 or (before is not None and before.progress.batch == 0)
    restarted = ", the first of its epoch: the loop starts the data of the epoch again" if begins else ""
    return Diagnosis(
        "data-shifted",
        "the data pipeline",
        f"after the resume, micro-step {difference.step} got the batch of micro-step {other}{restarted}",
        "let the data continue where it stopped, one batch per call of the train cell: `for batch in "
        "ckptkit.data.resumable(dataset, epochs)` in your own loop, ckpt.train(model, epochs, dataset) with Model",
    )


def _rule_known_part(difference: TraceDifference, _: frozenset[str]) -> Diagnosis | None:
    kind = kind_of(difference.names)
    if kind == "loss":
        return _suspected(difference, "operator", "equal batches and weights give a different loss after the resume")
    if kind in ("batch", "rng"):
        return _suspected(difference, "pipeline", "the data differs after the resume")
    return None


def _rule_forgotten(difference: TraceDifference, unstable: frozenset[str]) -> Diagnosis | None:
    values = causes(difference, unstable)
    if not values:
        return None
    paths = [*values]
    is_given = paths[0].startswith("stateful[")
    what = "something that its owner does not restore" if is_given else "something that no checkpoint gave back"
    return _forgotten(
        paths,
        f"{_first(difference)} likely depends on {what}: {compared(paths[0], values[paths[0]])}",
        _RESTORE_IT if is_given else _GIVE_IT,
    )


def _rule_unstorable(difference: TraceDifference, _: frozenset[str]) -> Diagnosis | None:
    named = difference.expected.unstored  # with what each of it is
    if not named or not difference.resumed_at:
        return None
    what = "likely depends on what training changes and no checkpoint can hold"
    first = next(iter(named))
    return _forgotten([*named], f"{_first(difference)} {what}: {first} ({named[first]})", _GIVE_IT)


def _forgotten(paths: Sequence[str], cause: str, fix: str) -> Diagnosis:
    return Diagnosis("forgotten-state", paths[0], cause, fix, tuple(paths[1:4]))


_RULES: tuple[Callable[[TraceDifference, frozenset[str]], Diagnosis | None], ...] = (
    _rule_saving,
    _rule_own_saving,
    _rule_torn_by_save,
    _rule_lost_of_named,
    _rule_lost_of_loader,
    _rule_data_elsewhere,
    _rule_known_part,
    _rule_forgotten,
    _rule_unstorable,
)


def _first(difference: TraceDifference) -> str:
    return difference.names[0] if difference.names else f"micro-step {difference.step}"


def _suspected(difference: TraceDifference, kind: str, what: str) -> Diagnosis | None:
    begun = difference.reference.begun
    suspects = () if begun is None else begun.suspects
    first = next((suspect for suspect in suspects if suspect.kind == kind), None)
    if first is None:
        return None
    also = tuple(suspect.where for suspect in suspects if suspect is not first)
    return Diagnosis(f"random-{kind}", first.where, f"{what}. Likely {first.where}: {first.why}", first.fix, also)
