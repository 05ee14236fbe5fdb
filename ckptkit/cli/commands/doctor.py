"""Implements ``ckptkit doctor``; ``docs/cli.md`` describes the JSON. Progress goes to stderr."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from ckptkit.cli.errors import FINE, PROBLEM
from ckptkit.cli.examination import Case, prepare, replace_file, report_failure, scratch_lives, write_junit
from ckptkit.cli.options import AsJson, Command, Junit, positive_duration
from ckptkit.cli.output import Part, print_result
from ckptkit.core.text import many, some
from ckptkit.tools.doctor.card import card_of
from ckptkit.tools.doctor.compare import TraceDifference
from ckptkit.tools.doctor.examination import DoctorExamination
from ckptkit.tools.doctor.result import DoctorOptions, FailedLifeError, Report, UnusableScriptError, rank_in_words

_SUITE = "ckptkit doctor"
_FIRST = ("uninterrupted", "uninterrupted, once more")  # lives, in the words of the JUnit file


def run_doctor(
    command: Command = None,
    *,
    steps: Annotated[int, typer.Option(min=2, help="Micro-steps of each life.")] = 24,
    kills: Annotated[int, typer.Option(min=1, help="How many lives are killed with SIGKILL.")] = 4,
    own_saves: Annotated[bool, typer.Option("--own-saves", help="Examine also what the script saves itself.")] = False,
    seed: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Seed to set where the script sets none.")] = 1,
    within: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time for all: do fewer micro-steps and kills if need be.")
    ] = None,
    keep: Annotated[str | None, typer.Option(help="A new or empty folder for traces and logs, which stay.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that each life may take.")] = 3600,
    junit: Junit = None,
    card: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Also write the verdict as a card to publish beside a model.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Run a training script in scratch roots, kill and resume it, and name the first thing that differs.

    Exits with 0 if it is exact, 1 if it is not, 2 if it cannot be examined, 3 if a file cannot be written.

    Examples:
        ckptkit doctor --kills 5 -- python train.py --lr 0.1
        ckptkit doctor --within 5m --junit doctor.xml --card card.md -- python train.py
    """
    limit = None if within is None else positive_duration("--within", within)
    options = DoctorOptions(steps, kills, seed, timedelta(seconds=timeout), limit, own_saves)
    command = command or []
    prepare(junit, "--junit")
    prepare(card, "--card")
    try:
        if not command:
            raise UnusableScriptError(
                "give the command that trains after two dashes: ckptkit doctor -- python train.py"
            )
        with scratch_lives(keep, "ckptkit-doctor-") as (folder, lives):
            report = DoctorExamination(
                command, folder, options, monotonic=time.monotonic, begins=lives.begins, stepped=lives.stepped
            ).run()
    except (UnusableScriptError, FailedLifeError, OSError) as error:
        return report_failure(error, command, junit, _SUITE, "examination")
    write_junit(junit, _SUITE, _cases(report))
    lines = [*_lines(report, shlex.join(command))]
    if card is not None:
        verdict = [_headline(report)] if report.difference is None else _words_of(report, report.difference)
        replace_file(card, card_of(report, command, options, verdict).encode())
    if options.within is not None:
        killed = sum(life.planned_kill is not None and not life.own_saves for life in report.lives)
        lines.append(
            f"took {report.seconds:.0f} of {options.within.total_seconds():.0f} s, with {report.steps} of "
            f"{options.steps} micro-steps and {killed} of {options.kills} kills"
        )
    if report.stateful or report.ignore:
        given = ", ".join(f"{name!r}: {owner}" for name, owner in report.stateful.items())
        pasted = []
        if given:
            pasted.append(f"stateful={{{given}}}")
        if report.ignore:
            pasted.append(f"training=Training(ignore={report.ignore})")
        lines.append(f"ready to paste: {', '.join(pasted)}")
    for url in report.others:
        lines.append(f"not examined: run root {url}, which the script restores as well: give it a script of its own")
    if keep is not None:
        lines.append(f"traces and logs of all lives: {Path(keep).absolute()}")
    print_result(_document(report), lines, as_json=as_json)
    return FINE if report.is_sound else PROBLEM


def _cases(report: Report) -> list[Case]:
    """Return one case for each life; the one that differs failed. What came after it is none."""
    difference, diagnosis = report.difference, report.diagnosis
    cases: list[Case] = []
    for number, life in enumerate(report.lives):
        begun = life.begun.step if life.begun is not None else 0
        came = f"resumed after micro-step {begun}" if begun else "begun afresh"
        went = "to the end" if life.planned_kill is None else f"killed after micro-step {life.planned_kill}"
        own = ", its own saves at the mirror" if life.is_from_mirror else ", its own saves" if life.own_saves else ""
        name = _FIRST[number] if number < len(_FIRST) else f"life {number + 1}: {came}, {went}{own}"
        if difference is not None and life.name == difference.life.name:
            message = "not exact" if diagnosis is None else f"{diagnosis.code}: {diagnosis.where}"
            words = "\n".join(_words_of(report, difference))
            return [*cases, Case(name, life.seconds, "failure", message, words)]
        cases.append(Case(name, life.seconds))
    return cases


def _lines(report: Report, command: str) -> Iterator[Part]:
    kills = []
    for life in report.lives:
        if life.planned_kill is None:
            continue
        words = str(life.planned_kill)
        if life.ranks:
            words += " (all ranks)" if life.killed_ranks is None else f" (rank {life.killed_ranks[0]})"
        kills.append((words, life.own_saves))
    killed = ", ".join(words for words, own_saves in kills if not own_saves)
    own = "".join(f", and after {words} with its own saves" for words, own_saves in kills if own_saves)
    own += ", resumed from the mirror alone" if any(life.is_from_mirror for life in report.lives) else ""
    of_ranks = f" in each of {report.ranks} ranks" if report.ranks > 1 else ""
    lives = f"{report.steps} micro-steps{of_ranks}, {len(report.lives)} lives"
    yield f"{command}: {lives}, killed after {f'[{killed}]' if killed else 'none'}{own}"
    yield f"compared: {report.compared} micro-steps with {report.values} values each"
    if report.difference is None:
        yield _headline(report), "bold green"
        if report.other_losses:
            yield (
                f"note: the loss reported after micro-step {', '.join(map(str, report.other_losses))} was different "
                "in some life, although batch, gradients and weights were equal: most likely its kernel rounded "
                "differently"
            )
        for note in report.notes[:5]:
            yield f"note: {note} is not as it was after a resume, or in no checkpoint; nothing depends on it"
        if not _epochs(report):
            yield (
                f"note: no epoch ended within {report.steps} micro-steps, so what a later epoch changes was not seen: "
                "give more --steps, or less data"
            )
    else:
        yield "NOT exact", "bold red"
        for line in _words_of(report, report.difference):
            yield (line, "bold") if line.startswith("diagnosis: ") else line


def _epochs(report: Report) -> int:
    """Return how many epochs ended within the micro-steps that were compared."""
    done = [
        stepped.progress.epoch for life in report.lives[:1] for at, stepped in life.steps.items() if at <= report.steps
    ]
    return max(done, default=0)


def _headline(report: Report) -> str:
    if not report.other_losses:
        return "exact: every interrupted life is the uninterrupted one, bit for bit"
    losses = many(len(report.other_losses), "reported loss was", "reported losses were")
    return (
        "exact: state, batches and gradients of every interrupted life are those of the uninterrupted one, bit for "
        f"bit; {losses} rounded differently"
    )


def _words_of(report: Report, difference: TraceDifference) -> list[str]:
    at = difference.expected.progress
    without = "it did not get that far" if difference.found is None else "it had ended before"
    what = some(difference.names, 4) or without
    began = f"resumed after micro-step {difference.resumed_at}" if difference.resumed_at else "begun afresh"
    words = [
        f"first difference: {rank_in_words(difference.rank)}micro-step {difference.step} (epoch {at.epoch}, batch "
        f"{at.batch}, micro-step {at.micro_step} of {at.accumulation_steps}): {what}",
        f"seen in: {difference.life.name}, {began}",
    ]
    if (named := report.diagnosis) is not None:
        title = f"{named.code}: {named.where}" if named.where else named.code
        words += [f"diagnosis: {title}", f"cause: {named.cause}", f"fix: {named.fix}"]
        words += [f"look also at: {', '.join(named.also)}"] if named.also else []
    return words


def _document(report: Report) -> dict[str, Any]:
    difference = report.difference
    return {
        "exact": report.is_sound,
        "url": report.url,
        "steps": report.steps,
        "ranks": report.ranks,
        "compared": report.compared,
        "values": report.values,
        "epochs": _epochs(report),
        "seconds": round(report.seconds, 3),
        "lives": [
            {
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
            for life in report.lives
        ],
        "difference": None
        if difference is None
        else {
            "step": difference.step,
            "resumed_at": difference.resumed_at,
            "rank": difference.rank,
            "life": difference.life.name,
            "names": difference.names,
            "progress": difference.expected.progress,
        },
        "diagnosis": report.diagnosis,
        "other_losses": report.other_losses,
        "notes": report.notes,
        "stateful": report.stateful,
        "ignore": report.ignore,
        "left_out": report.others,
    }
