"""Writes the verdict of an examination as a card to publish beside a model, in Markdown with a block of YAML.

Its fields are those of the public cards of other projects, with a tolerance of 0 at every micro-step. Guarantees: names
no folder of this machine and no secret; two examinations of one script with the same options give the same card but for
`VARYING`. Any thread.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ckptkit.scrubber import scrub
from ckptkit.tools.doctor.lives.life_process import TrialLife
from ckptkit.tools.doctor.result import DoctorOptions, Report, rank_in_words

FIRST_WORDS = "# Resume card of "
VARYING = ("commit", "environment", "losses_rounded_otherwise", "seconds_to_new_micro_step", "stall_seconds")
_FOLDERS = re.compile(r"(?<![\w.~:/])/(?:[^/\s'\"`]+/)*(?=[^/\s'\"`])")  # of absolute paths, and not within a URL


def card_of(report: Report, command: Sequence[str], options: DoctorOptions, verdict: Sequence[str]) -> str:
    """Return the card of an examination; ``verdict`` is what it says in words."""
    script = next((Path(word) for word in command[1:] if word.endswith(".py") and Path(word).is_file()), None)
    commit = commit_of(script or Path())
    words = [Path(word).name if Path(word).is_absolute() else word for word in command]  # its spaces included
    values = dict(_fields(report, words, options, commit))
    where = f", {values['mode']}" if values["mode"] else ""
    name = f"{script.name if script else shlex.join(words)}{where}"
    title = f"{FIRST_WORDS}{name}: {'PASS' if report.is_sound else 'FAIL'}"
    fields = [f"{name}: {json.dumps(value)}" for name, value in values.items()]
    text = scrub("\n".join([title, "", *(f"- {line}" for line in verdict), "", "```yaml", *fields, "```", ""]))
    for folder in (Path.cwd(), Path.home()):
        text = text.replace(f"{folder}/", "")
    return _FOLDERS.sub("", text)


def _fields(
    report: Report, command: Sequence[str], options: DoctorOptions, commit: str | None
) -> Iterator[tuple[str, Any]]:
    first, *others = report.lives
    begun = first.begun
    environment = {} if begun is None else begun.environment
    seed = [] if options.seed == DoctorOptions.seed else ["--seed", str(options.seed)]
    own_saves = ["--own-saves"] if options.own_saves else []
    counts = ["--steps", str(options.steps), "--kills", str(options.kills)]
    yield "item", "checkpoint_resume"
    yield "status", "verified" if report.is_sound else "failed"
    yield "command", shlex.join(["ckptkit", "doctor", *counts, *seed, *own_saves, "--", *command])
    yield "commit", commit
    yield "mode", environment.get("mode")
    yield "environment", {name: value for name, value in environment.items() if name != "mode"}
    difference = report.difference
    yield "reference_item", "uninterrupted"
    yield "sentinel_steps", f"every micro-step from 1 to {report.steps}"
    yield "absolute_tolerance", 0
    yield "relative_tolerance", 0
    yield "micro_steps_compared", report.compared
    yield "values_per_micro_step", report.values
    yield "ranks", report.ranks
    yield "differences", 0 if difference is None else f"{rank_in_words(difference.rank)}from {difference.step} on"
    yield "sentinels_match", difference is None
    yield "losses_rounded_otherwise", report.other_losses
    killed = [life for life in others if life.planned_kill is not None]
    yield "kills", [_kill(life) for life in killed]
    yield "seconds_to_new_micro_step", [_seconds(life, report.lives) for life in killed]
    yield "stall_seconds", max((round(save.stall_seconds, 4) for life in killed for save in life.saved), default=None)


def _kill(life: TrialLife) -> dict[str, Any]:
    """Return after which micro-step a life was killed, and where the next one goes on."""
    saved = max((save.step for save in life.saved), default=0)
    stepped, where = life.each_rank[0].steps.get(saved), {}
    if stepped is not None:
        at = stepped.progress
        where = {"epoch": at.epoch, "batch": at.batch, "in_cycle": f"{at.micro_step}/{at.accumulation_steps}"}
    ranks = {} if not life.ranks else {"rank": "all" if life.killed_ranks is None else life.killed_ranks[0]}
    return {"after": life.planned_kill, **ranks, "own_saves": life.own_saves, "resumed_after": saved, **where}


def _seconds(killed: TrialLife, lives: Sequence[TrialLife]) -> float | None:
    """Return the time from a kill to the end of the first new micro-step; None without one, or without a resume."""
    for life in lives[lives.index(killed) + 1 :][:1]:
        stepped = life.steps.get((killed.planned_kill or 0) + 1)
        if stepped is not None and life.begun is not None and life.begun.checkpoint is not None:
            return round(stepped.at - life.began_at, 2)
    return None


def commit_of(script: Path) -> str | None:
    """Return the commit of the repository that has ``script``, a file or a folder, and "modified" if it has changed."""
    folder, name = (script, ".") if script.is_dir() else (script.parent, script.name)
    if shutil.which("git") is None or not _git(folder, "ls-files", name):
        return None
    return _git(folder, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty= modified")


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "-C", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    return done.stdout.strip() if done.returncode == 0 else None
