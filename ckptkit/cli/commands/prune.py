"""Implements ``ckptkit prune``; ``docs/cli.md`` describes the JSON.

Asks on a terminal; without one, and with ``--json``, it needs ``--yes`` or ``--dry-run``.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from ckptkit.cli.errors import FINE, PROBLEM, WrongUsageError, complain, resumable
from ckptkit.cli.options import AsJson, Options, Root, open_root
from ckptkit.cli.output import Part, bar_of_steps, plain, print_parts, print_result, table_of
from ckptkit.core.text import many, size
from ckptkit.run.keep_policy import KeepBest, KeepCertified, KeepEvery, KeepLatest, KeepPolicy
from ckptkit.run.ownership import refuse_no_run
from ckptkit.tools.prune import Pruned, PrunePlan, Rule, plan_prune, prune

_RESUME = "The checkpoints to keep are untouched: the same command removes the rest."
_KEEPS = "latest:N, every:OPTIMIZER_STEPS, best:N:METRIC:max|min or certified:N"


def run_prune(
    root: Root,
    *,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help="What to keep: latest:N, every:OPTIMIZER_STEPS, best:N:METRIC:max|min, certified:N; repeatable.",
        ),
    ] = None,
    branches: Annotated[bool, typer.Option("--branches", help="Also remove what is off the lineage.")] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also empty saves that did not end; only while no job is running.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    options: Options = None,
    as_json: AsJson = False,
) -> int:
    """Remove checkpoints that no policy keeps, after showing what goes, what stays and why.

    A job may be running. The two newest checkpoints always stay, and so does what cannot be read or may be needed by
    what cannot be read; then it exits with 1. Without a terminal, give --yes or --dry-run.

    Examples:
        ckptkit prune runs/vit-17 --keep latest:3 --keep every:1000 --dry-run
        ckptkit prune s3://bucket/vit-17 --keep best:2:accuracy:max --branches --yes
    """
    ask = asker()
    rules = [Rule(policy, parse_keep(policy)) for policy in keep or ()]
    if not rules and not branches and not unfinished:
        raise WrongUsageError(
            f"give --keep {_KEEPS}; or --branches to remove only what is off the lineage, or --unfinished"
        )
    if not (yes or dry_run) and (ask is None or as_json):
        raise WrongUsageError(
            "there is no terminal to confirm in: --yes removes without a question, --dry-run removes nothing"
        )
    storage = open_root(root, options, writes=not dry_run)
    plan = plan_prune(storage, rules, branches=branches, unfinished=unfinished)
    if not plan.decisions:
        refuse_no_run(storage)
    for problem in plan.problems:
        complain(problem)
    if not as_json:
        print_parts(_parts_of_plan(storage.url, plan))
    pruned = Pruned()
    is_any = bool(plan.doomed or plan.remains or plan.frozen)
    question = f"Remove {many(len(plan.doomed), 'checkpoint')} for good, {size(plan.freed_bytes)} in all?"
    is_wanted = is_any and not dry_run and (yes or (ask is not None and ask(question)))
    if is_wanted:
        with resumable("all was removed", _RESUME), bar_of_steps(transient=True) as bar:
            task = bar.add_task("removing", total=len(plan.doomed))
            pruned = prune(storage, plan, token=secrets.token_hex(16), done=lambda name: bar.advance(task))
    document = {
        "root": storage.url,
        "dry_run": dry_run,
        "checkpoints": plan.decisions,
        "remains": plan.remains,
        "frozen": plan.frozen,
        "freed_bytes": plan.freed_bytes,
        "unfinished_bytes": plan.unfinished_bytes,
        "problems": plan.problems,
        **plain(pruned),
    }
    lines = ["nothing was removed"] if is_any else []
    if is_wanted:
        lines = [f"{many(len(pruned.removed), 'checkpoint')} removed"]
    if pruned.spared:
        spared = ", ".join(pruned.spared)
        lines.append(f"not removed by this command, since the run has changed meanwhile: {spared}")
    print_result(document, lines, as_json=as_json)
    if pruned.stuck and not as_json:
        complain(f"could not be removed, as the log says: {', '.join(pruned.stuck)}. {_RESUME}")
    return PROBLEM if plan.problems or pruned.stuck else FINE


def asker() -> Callable[[str], bool] | None:
    """Return a function that asks on the terminal; None without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return lambda question: typer.confirm(question, err=True)


def parse_keep(text: str) -> KeepPolicy:
    """Return the policy that ``text`` describes; raises WrongUsageError if it describes none."""
    kind, _, rest = text.partition(":")
    try:
        if kind == "latest":
            return KeepLatest(int(rest))
        if kind == "every":
            return KeepEvery(optimizer_steps=int(rest))
        if kind == "certified":
            return KeepCertified(int(rest))
        if kind == "best":
            n, _, named = rest.partition(":")
            metric, _, mode = named.rpartition(":")  # a metric's name may contain colons
            if metric and mode in ("max", "min"):
                return KeepBest(int(n), metric, "max" if mode == "max" else "min")
    except ValueError as error:
        raise WrongUsageError(
            f"--keep {text}: {rest.partition(':')[0]!r} is no number above 0; give {_KEEPS}"
        ) from error
    raise WrongUsageError(f"--keep {text}: give {_KEEPS}")


def _parts_of_plan(url: str, plan: PrunePlan) -> Iterator[Part]:
    if not plan.decisions:
        yield f"no committed checkpoint at {url}"
        return
    rows = [
        (str(decision.name), size(decision.size_bytes), "goes" if decision.goes else "stays", decision.why)
        for decision in plan.decisions
    ]
    yield url
    styles = ["red" if decision.goes else "" for decision in plan.decisions]
    yield from table_of(("checkpoint", ">size", "", "why"), rows, styles=styles)
    if plan.remains:
        folders = ", ".join(map(str, plan.remains))
        yield f"remains of folders that never were, or no longer are, checkpoints: {folders}"
    if plan.frozen:
        yield f"shared weights that no checkpoint will use: of attempt {', '.join(map(str, plan.frozen))}"
    if plan.unfinished_bytes:
        yield (
            f"{size(plan.unfinished_bytes)} of saves that have not ended stay, since a job may be writing. If none is, "
            "the next start removes them, and so does --unfinished"
        )
    doomed, stays = len(plan.doomed), len(plan.decisions) - len(plan.doomed)
    yield f"{many(doomed, 'checkpoint')} to be removed, {stays} to stay; {size(plan.freed_bytes)} to be freed"
