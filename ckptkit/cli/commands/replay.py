"""Implements ``ckptkit replay``; ``docs/cli.md`` describes the JSON. Progress goes to stderr."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated

import typer

from ckptkit.cli.errors import FINE, PROBLEM, WrongUsageError
from ckptkit.cli.examination import Case, prepare, report_failure, scratch_lives, write_junit
from ckptkit.cli.options import AsJson, Command, Junit, Options, Root, open_root
from ckptkit.cli.output import Part, print_result
from ckptkit.core.text import some
from ckptkit.tools.diff import CheckpointDifference, in_order_of_size
from ckptkit.tools.doctor.result import FailedLifeError, UnusableScriptError, rank_in_words
from ckptkit.tools.replay import ReplayVerdict, Stretch, StretchReplay, certify, stretch_of

_SUITE = "ckptkit replay"


def run_replay(
    root: Root,
    command: Command = None,
    *,
    begin: Annotated[str | None, typer.Option("--from", help="A checkpoint; by default the one before.")] = None,
    end: Annotated[str, typer.Option("--to", help="The last checkpoint of the stretch.")] = "latest",
    options: Options = None,
    keep: Annotated[str | None, typer.Option(help="A new or empty folder for what is trained, which stays.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that each replay may take.")] = 86400,
    junit: Junit = None,
    record: Annotated[bool, typer.Option("--record", help="Store in the run which checkpoints are certified.")] = False,
    as_json: AsJson = False,
) -> int:
    """Train a stretch of a run again in a scratch root, and compare every bit with the run's own checkpoints.

    Exits with 0 if they are equal, 1 if they are not, 2 if the script cannot be replayed, 3 if a storage failed.

    Example:
        ckptkit replay runs/a --to latest -- python train.py --lr 0.1
    """
    if not command:
        raise WrongUsageError("give the command that trains after two dashes: ckptkit replay ROOT -- python train.py")
    prepare(junit, "--junit")
    storage = open_root(root, options)
    stretch = stretch_of(storage, begin, end)
    try:
        with scratch_lives(keep, "ckptkit-replay-") as (folder, lives):
            verdict = StretchReplay(
                storage,
                stretch,
                command,
                folder,
                time_limit=timedelta(seconds=timeout),
                monotonic=time.monotonic,
                begins=lives.begins,
                stepped=lives.stepped,
            ).run()
    except (UnusableScriptError, FailedLifeError, OSError) as error:
        return report_failure(error, command, junit, _SUITE, "replay")
    write_junit(junit, _SUITE, _cases(stretch, verdict))
    recorded = certify(storage, stretch, verdict) if record else []
    difference = verdict.difference
    leaves = [] if difference is None else difference.leaves
    document = {
        "root": storage.url,
        "begin": stretch.begin.name,
        "equal": verdict.equal,
        "differing": verdict.differing,
        "leaves": [{"name": leaf.name, "role": leaf.role, "rank": leaf.rank} for leaf in leaves],
        "state": [] if difference is None else _paths(difference),
        "deterministic": verdict.is_deterministic,
        "versions": verdict.versions,
        "recorded": recorded,
    }
    lines = [*_lines(storage.url, stretch, verdict, shlex.join(command))]
    if record:
        lines.append(f"recorded at {storage.url}: {', '.join(recorded) or 'nothing'}")
    print_result(document, lines, as_json=as_json)
    return FINE if verdict.differing is None else PROBLEM


def _cases(stretch: Stretch, verdict: ReplayVerdict) -> list[Case]:
    cases = [Case(name) for name in verdict.equal]
    if verdict.differing is not None:
        words = f"what differs: {_words_of(verdict)}\ncause: {_cause(verdict)}"
        cases.append(Case(verdict.differing, 0.0, "failure", f"differs: {verdict.differing}", words))
    left = stretch.ends[len(cases) :]
    return [*cases, *(Case(str(end.name), 0.0, "skipped", "an earlier one differs") for end in left)]


def _lines(url: str, stretch: Stretch, verdict: ReplayVerdict, command: str) -> Iterator[Part]:
    yield f"{command}: replayed {url} from {stretch.begin.name}"
    if verdict.equal:
        yield f"equal, bit for bit: {', '.join(verdict.equal)}"
    if verdict.differing is None:
        yield "certified: this stretch, trained again, is that of the run", "bold green"
        return
    after = verdict.equal[-1] if verdict.equal else str(stretch.begin.name)
    yield f"DIFFERS: {verdict.differing}, and the difference came after {after}", "bold red"
    yield f"what differs: {_words_of(verdict)}"
    yield f"cause: {_cause(verdict)}"


def _words_of(verdict: ReplayVerdict) -> str:
    difference = verdict.difference
    assert difference is not None  # noqa: S101 - something differs
    names = [f"{rank_in_words(leaf.rank)}{leaf.name}" for leaf in in_order_of_size(difference.leaves)]
    names += _paths(difference)
    names += [f"the counter {name}" for name in difference.progress]
    return some(names)


def _paths(difference: CheckpointDifference) -> list[str]:
    many = difference.ranks[0] > 1
    return [f"{rank_in_words(place.rank if many else None)}{place.path}" for place in difference.state]


def _cause(verdict: ReplayVerdict) -> str:
    if not verdict.is_deterministic:
        return (
            "two replays differ from each other, so the script does not give the same bits twice. `ckptkit doctor` "
            "names the operator, or the code, that does it"
        )
    if verdict.versions:
        listed = ", ".join(f"{name} {then} -> {now}" for name, then, now in verdict.versions)
        return f"two replays agree with each other; since the run, versions have changed: {listed}"
    return (
        "two replays agree with each other and not with the run, with the same versions of the libraries: it was "
        "trained by other code or on other data, or the hardware computed wrongly there"
    )
