"""Implements ``ckptkit replay``: trains a stretch of a run again and says whether it gives the same bits.

``docs/cli.md`` describes the JSON. Progress goes to stderr.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from ckptkit.cli.errors import FINE, PROBLEM, WrongUsageError
from ckptkit.cli.examination import Lives, exits_on_signals, folder_for, report_failure
from ckptkit.cli.junit import Case, prepare_junit, write_junit
from ckptkit.cli.output import Line, print_result
from ckptkit.cli.run_root import open_root
from ckptkit.core.text import some
from ckptkit.tools.diff.checkpoints import Difference, in_order_of_size
from ckptkit.tools.doctor.report import FailedLifeError, UnusableScriptError, rank_in_words
from ckptkit.tools.replay import ReplayVerdict, Stretch, StretchReplay, certify, stretch_of

_SUITE = "ckptkit replay"


def run_replay(
    root: str,
    command: Sequence[str],
    options: Iterable[str] = (),
    *,
    begin: str | None,
    end: str,
    keep: str | None,
    time_limit: timedelta,
    as_json: bool,
    junit: Path | None = None,
    record: bool = False,
) -> int:
    """Replay and print the verdict, and with ``record`` store what is certified; returns the exit code."""
    if not command:
        raise WrongUsageError("give the command that trains after two dashes: ckptkit replay ROOT -- python train.py")
    if junit is not None:
        prepare_junit(junit)
    storage = open_root(root, options)
    stretch = stretch_of(storage, begin, end)
    try:
        with exits_on_signals(), folder_for(keep, "ckptkit-replay-") as folder, Lives() as shown:
            verdict = StretchReplay(
                storage,
                stretch,
                command,
                folder,
                time_limit=time_limit,
                monotonic=time.monotonic,
                begins=shown.begins,
                stepped=shown.stepped,
            ).run()
    except (UnusableScriptError, FailedLifeError, OSError) as error:
        return report_failure(error, command, junit, _SUITE, "replay")
    if junit is not None:
        write_junit(junit, _SUITE, _cases(stretch, verdict))
    recorded = certify(storage, stretch, verdict) if record else []
    document = {"root": storage.url, "begin": stretch.begin.name, **_document(verdict), "recorded": recorded}
    lines = list(_lines(storage.url, stretch, verdict, shlex.join(command)))
    if record:
        lines.append(f"recorded at {storage.url}: {', '.join(recorded) or 'nothing'}")
    print_result(document, lines, as_json=as_json)
    return FINE if verdict.differing is None else PROBLEM


def _cases(stretch: Stretch, verdict: ReplayVerdict) -> list[Case]:
    """Return one case for each checkpoint of the stretch."""
    cases = [Case(name) for name in verdict.equal]
    if verdict.differing is not None:
        words = f"what differs: {_words_of(verdict)}\ncause: {_cause(verdict)}"
        cases.append(Case(verdict.differing, 0.0, "failure", f"differs: {verdict.differing}", words))
    left = stretch.ends[len(cases) :]
    return [*cases, *(Case(str(end.name), 0.0, "skipped", "an earlier one differs") for end in left)]


def _document(verdict: ReplayVerdict) -> dict[str, Any]:
    difference = verdict.difference
    leaves = [] if difference is None else difference.leaves
    return {
        "equal": verdict.equal,
        "differing": verdict.differing,
        "leaves": [{"name": leaf.name, "role": leaf.role, "rank": leaf.rank} for leaf in leaves],
        "state": [] if difference is None else _paths(difference),
        "deterministic": verdict.is_deterministic,
        "versions": verdict.versions,
    }


def _lines(url: str, stretch: Stretch, verdict: ReplayVerdict, command: str) -> Iterator[Line]:
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
    names = [f"{rank_in_words(one.rank)}{one.name}" for one in in_order_of_size(difference.leaves)]
    names += _paths(difference)
    names += [f"the counter {name}" for name in difference.progress]
    return some(names)


def _paths(difference: Difference) -> list[str]:
    many = difference.ranks[0] > 1
    return [f"{rank_in_words(one.rank if many else None)}{one.path}" for one in difference.state]


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
