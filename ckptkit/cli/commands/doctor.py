"""Implements ``ckptkit doctor``: runs the examination and prints its report as text or as JSON.

The JSON is ``{"exact": bool, "url": str, "steps": int, "ranks": int, "compared": int, "values": int, "epochs": int,
"seconds": float, "lives": [...], "difference": {...} or null, "diagnosis": {...} or null, "other_losses": [...],
"notes": [...], "then": {...} or null, "before": [...], "left_out": [...], "untrained": [...]}``. It is about the run
root ``url``. Of a script that trains at several, ``before`` has the same of those that were examined before, which are
exact, ``left_out`` the roots that were not examined, and ``untrained`` those at which it did no micro-step. A life has
``name``, ``began_at``, ``ended_at``, ``killed_after``, ``killed_rank``, ``exit_code``, ``seconds``, ``own_saves``,
``from_mirror`` and ``ranks``; a difference ``url``, ``step``, ``resumed_at``, ``rank``, ``life``, ``names`` and
``progress``; a diagnosis ``code``, ``where``, ``cause``, ``fix`` and ``also``. ``epochs`` are those that ended;
``other_losses`` micro-steps where only the reported loss differed. ``then`` is the job on another number of ranks:
``ranks``, ``changes``, ``updates``, ``micro_batches``, ``other_losses``, ``converted``, ``cut`` and ``notes``. Progress
goes to stderr.
"""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from ckptkit.cli.examination import Lives, exits_on_signals, folder_for, report_failure
from ckptkit.cli.junit import Case, prepare_junit, write_junit
from ckptkit.cli.text import print_json
from ckptkit.core.text import some
from ckptkit.tools.doctor.compare import Difference
from ckptkit.tools.doctor.diagnose import Diagnosis
from ckptkit.tools.doctor.lives.trial import Life
from ckptkit.tools.doctor.promises import Continuation
from ckptkit.tools.doctor.report import (
    FailedLifeError,
    Options,
    Report,
    Reports,
    UnusableScriptError,
    rank_in_words,
    ranks_in_words,
)
from ckptkit.tools.doctor.run_by_run import RunByRun

_SUITE = "ckptkit doctor"
_UNINTERRUPTED = 2  # so many lives come first


def run_doctor(
    command: Sequence[str],
    options: Options,
    *,
    keep: str | None,
    as_json: bool,
    junit: Path | None = None,
    then: str | None = None,
) -> int:
    """Examine ``command`` and print the report; returns the exit code.

    Args:
        command: The user's command, program first.
        options: How to examine it.
        keep: A folder for everything, which stays; None for a temporary one.
        as_json: Whether to print JSON.
        junit: A file for the result, too.
        then: A command that continues the job on another number of ranks, as in a shell.

    Raises:
        OSError: If ``junit`` cannot be written.
    """
    if junit is not None:
        prepare_junit(junit)
    try:
        with exits_on_signals():
            found = _examined(command, options if then is None else replace(options, then=_split(then, options)), keep)
    except (UnusableScriptError, FailedLifeError, OSError) as error:
        return report_failure(error, command, junit, _SUITE, "examination")
    if junit is not None:
        write_junit(junit, _SUITE, [case for one in found.reports for case in _cases(one, len(found.reports) > 1)])
    if as_json:
        before = [_as_json(one) for one in found.reports[:-1]]
        around = {"before": before, "left_out": list(found.left_out), "untrained": list(found.untrained)}
        print_json({**_as_json(found.last), **around})
    else:
        _print_all(found, options, shlex.join(command), keep)
    return 0 if found.is_sound else 1


def _print_all(found: Reports, options: Options, command: str, keep: str | None) -> None:
    """Print the report of each run that was examined, and which were not."""
    for report in found.reports:
        if len(found.reports) > 1 or found.left_out:
            print(f"run root {report.url}")
        _print(report, command)
        if options.within is not None:
            print(_fitted(report, options, options.within))
    for url in found.left_out:
        why = "there was no time left" if found.is_sound else "mend this first"
        print(f"not examined: run root {url}, at which the script trains as well: {why}")
    for url in found.untrained:
        print(f"note: run root {url} was restored, and did no micro-step: if one comes later, give more --steps")
    if keep is not None:
        print(f"traces and logs of all lives: {Path(keep).absolute()}")


def _split(then: str, options: Options) -> tuple[str, ...]:
    """Return the words of the command of ``--then``.

    Raises:
        UnusableScriptError: If it has none, or cannot be examined with these options.
    """
    if options.within is not None:
        raise UnusableScriptError(
            "--within does not know what the lives of --then take: give fewer --steps and --kills"
        )
    try:
        words = tuple(shlex.split(then))
    except ValueError as error:
        raise UnusableScriptError(f"--then {then!r} is not a command: {error}") from error
    if not words:
        raise UnusableScriptError('give --then a command, as in --then "msrun --worker_num=1 ... train.py"')
    return words


def _cases(report: Report, of_many: bool) -> list[Case]:
    """Return one case for each life; the one that differs failed. Lives that only look for its cause are none.

    If it is one report ``of_many``, their names begin with the run root.
    """
    difference, cases, found = report.difference, [], report.diagnosis
    where = f"{report.url}: " if of_many else ""
    for number, life in enumerate(report.lives):
        name = where + _case_name(number, life)
        if difference is None or life.name != difference.life.name:
            cases.append(Case(name, life.seconds))
            continue
        message = "not exact" if found is None else f"{found.code}: {found.where}"
        cases.append(Case(name, life.seconds, "failure", message, "\n".join(_words_of(report, difference))))
        return cases
    if found is not None:
        cases.append(
            Case(where + _SUITE, 0.0, "failure", f"{found.code}: {found.where}", "\n".join(_words_of_diagnosis(found)))
        )
    return cases


def _case_name(number: int, life: Life) -> str:
    begun = life.begun.step if life.begun is not None else 0
    if life.elsewhere and life.unrestored is not None:
        return f"life {number + 1}, on other ranks: refused"
    if number < _UNINTERRUPTED:
        return ("uninterrupted", "uninterrupted, once more")[number]
    came = f"resumed after micro-step {begun}" if begun else "begun afresh"
    went = "to the end" if life.planned_kill is None else f"killed after micro-step {life.planned_kill}"
    who = f", on {ranks_in_words(len(life.each_rank))}" if life.elsewhere else ""
    own = ", its own saves at the mirror" if life.is_from_mirror else ", its own saves" if life.own_saves else ""
    return f"life {number + 1}{who}: {came}, {went}{own}"


def _fitted(report: Report, options: Options, within: timedelta) -> str:
    killed = sum(life.planned_kill is not None and not life.own_saves for life in report.lives)
    return (
        f"took {report.seconds:.0f} of {within.total_seconds():.0f} s, with {report.steps} of {options.steps} "
        f"micro-steps and {killed} of {options.kills} kills"
    )


def _examined(command: Sequence[str], options: Options, keep: str | None) -> Reports:
    if not command:
        raise UnusableScriptError("give the command that trains after two dashes: ckptkit doctor -- python train.py")
    with folder_for(keep, "ckptkit-doctor-") as folder, Lives() as shown:
        clock = time.monotonic
        return RunByRun(command, folder, options, monotonic=clock, begins=shown.begins, stepped=shown.stepped).run()


def _print(report: Report, command: str) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    killed_lives = [life for life in report.lives if life.planned_kill is not None and not life.elsewhere]
    kills = [(_killed(life), life.own_saves) for life in killed_lives]
    killed = ", ".join(words for words, own_saves in kills if not own_saves)
    own = "".join(f", and after {words} with its own saves" for words, own_saves in kills if own_saves)
    own += ", resumed from the mirror alone" if any(life.is_from_mirror for life in report.lives) else ""
    of_ranks = f" in each of {report.ranks} ranks" if report.ranks > 1 else ""
    lives = f"{report.steps} micro-steps{of_ranks}, {len(report.lives)} lives"
    console.print(f"{command}: {lives}, killed after {f'[{killed}]' if killed else 'none'}{own}")
    console.print(f"compared: {report.compared} micro-steps with {report.values} values each")
    if report.continuation is not None:
        console.print(_then_in_words(report, report.continuation))
    if report.difference is None and report.diagnosis is not None:
        console.print("NOT exact" if report.continuation is None else "REFUSED", style="bold red")
        for line in _words_of_diagnosis(report.diagnosis):
            console.print(line)
    elif report.difference is None:
        console.print(_headline(report), style="bold green")
        if report.other_losses:
            console.print(
                f"note: the loss reported after micro-step {', '.join(map(str, report.other_losses))} was different "
                "in some life, although batch, gradients and weights were equal: most likely its kernel rounded "
                "differently"
            )
        for note in report.notes[:5]:
            console.print(
                f"note: {note} is in no checkpoint and differs after a resume; nothing compared depends on it"
            )
        if report.continuation is not None:
            for line in _words_of_continuation(report, report.continuation):
                console.print(line)
        if not _epochs(report):
            console.print(
                f"note: no epoch ended within {report.steps} micro-steps, so what a later epoch changes was not seen: "
                "give more --steps, or less data"
            )
    else:
        _print_difference(console, report, report.difference)


def _epochs(report: Report) -> int:
    """Return how many epochs ended within the micro-steps that were compared."""
    done = [one.progress.epoch for life in report.lives[:1] for at, one in life.steps.items() if at <= report.steps]
    return max(done, default=0)


def _killed(life: Life) -> str:
    who = "" if not life.ranks else " (all ranks)" if life.killed_ranks is None else f" (rank {life.killed_ranks[0]})"
    return f"{life.planned_kill}{who}"


def _headline(report: Report) -> str:
    others = len(report.other_losses)
    if not others:
        same = "" if report.continuation is None else " on as many ranks"
        return f"exact: every interrupted life is the uninterrupted one{same}, bit for bit"
    losses = "1 reported loss was" if others == 1 else f"{others} reported losses were"
    return (
        "exact: state, batches and gradients of every interrupted life are those of the uninterrupted one, bit for "
        f"bit; {losses} rounded differently"
    )


def _print_difference(console: Console, report: Report, difference: Difference) -> None:
    console.print("NOT exact", style="bold red")
    for line in _words_of(report, difference):
        console.print(line, style="bold" if line.startswith("diagnosis: ") else None)


def _words_of(report: Report, difference: Difference) -> list[str]:
    at = difference.expected.progress
    without = "it did not get that far" if difference.found is None else "it had ended before"
    what = some(difference.names, 4) or without
    began = f"resumed after micro-step {difference.resumed_at}" if difference.resumed_at else "begun afresh"
    elsewhere = any(life.elsewhere and life.name == difference.life.name for life in report.lives)
    where = f" on {ranks_in_words(report.continuation.ranks)}" if report.continuation and elsewhere else ""
    run = "" if difference.url is None else f"run root {difference.url}, "
    words = [
        f"first difference: {run}{rank_in_words(difference.rank)}micro-step {difference.step} (epoch {at.epoch}, batch "
        f"{at.batch}, micro-step {at.micro_step} of {at.accumulation_steps}): {what}",
        f"seen in: {difference.life.name}{where}, {began}",
    ]
    return words if report.diagnosis is None else words + _words_of_diagnosis(report.diagnosis)


def _words_of_diagnosis(found: Diagnosis) -> list[str]:
    words = [f"diagnosis: {found.code}: {found.where}", f"cause: {found.cause}", f"fix: {found.fix}"]
    return words + ([f"look also at: {', '.join(found.also)}"] if found.also else [])


def _then_in_words(report: Report, found: Continuation) -> str:
    places = [f"{one.after}{' (mid-cycle)' if one.mid_cycle else ''}" for one in found.changes]
    killed = [life.planned_kill for life in report.lives if life.elsewhere and life.planned_kill is not None]
    kills = f", killed after {killed} there" if killed else ""
    return f"then on {ranks_in_words(found.ranks)}, from micro-step {' and '.join(places) or 'none'} on{kills}"


def _words_of_continuation(report: Report, found: Continuation) -> list[str]:
    """Return what is exact on the other number of ranks, and what cannot be."""
    before, after = ranks_in_words(report.ranks), ranks_in_words(found.ranks)
    data = (
        f"{found.micro_batches} micro-batches of {found.updates} updates, none twice and none left out"
        if found.micro_batches
        else "the batches were not compared, because the doctor sees none"
    )
    in_mid_cycle = any(one.mid_cycle and one.refused is None for one in found.changes)
    sums = " (accumulators: their sum over the ranks, but for rounding)" if in_mid_cycle else ""
    words = [
        f"from {before} to {after}: what the checkpoint holds, bit for bit{sums}; {data}; resumes on {after} are exact",
        f"not bit for bit: after the change, sums are in another order, so gradients, losses and weights of {after} "
        f"were not compared with those of {before}",
    ]
    refused = [one for one in found.changes if one.refused is not None]
    words += [f"note: the change after micro-step {one.after} was refused: {one.refused}" for one in refused]
    words += [
        f"note: {one} is what neither the checkpoint holds nor a fresh start has: its load_state_dict() converts it to "
        f"{after}, or loses a part"
        for one in found.converted[:5]
    ]
    words += [f"note: not compared, since it is cut over the ranks: {', '.join(found.cut[:5])}"] if found.cut else []
    return words + [
        f"note: {one} is in no checkpoint and began anew on {after}; what depends on it was not compared"
        for one in found.notes[:5]
    ]


def _as_json(report: Report) -> dict[str, Any]:
    difference = report.difference
    then = None if report.continuation is None else dataclasses.asdict(replace(report.continuation, difference=None))
    for name in ("difference", "diagnosis", "compared"):
        (then or {}).pop(name, None)
    return {
        "exact": report.is_sound,
        "url": report.url,
        "steps": report.steps,
        "ranks": report.ranks,
        "compared": report.compared,
        "values": report.values,
        "epochs": _epochs(report),
        "seconds": round(report.seconds, 3),
        "lives": [_life_as_json(life) for life in report.lives],
        "difference": None
        if difference is None
        else {
            "url": difference.url or report.url,
            "step": difference.step,
            "resumed_at": difference.resumed_at,
            "rank": difference.rank,
            "life": difference.life.name,
            "names": list(difference.names),
            "progress": difference.expected.progress.model_dump(),
        },
        "diagnosis": None if report.diagnosis is None else dataclasses.asdict(report.diagnosis),
        "other_losses": list(report.other_losses),
        "notes": list(report.notes),
        "then": then,
    }


def _life_as_json(life: Life) -> dict[str, Any]:
    return {
        "name": life.name,
        "began_at": life.begun.step if life.begun is not None else None,
        "ended_at": life.last_step,
        "killed_after": life.planned_kill,
        "exit_code": life.exit_code,
        "killed_rank": life.killed_ranks[0] if life.killed_ranks else None,
        "seconds": round(life.seconds, 3),
        "own_saves": life.own_saves,
        "from_mirror": life.is_from_mirror,
        "ranks": len(life.each_rank),
    }
