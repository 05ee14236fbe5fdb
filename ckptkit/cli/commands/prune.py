"""Implements ``ckptkit prune``: removes checkpoints that no policy keeps, also while a job is running.

The JSON is ``{"root": str, "dry_run": bool, "checkpoints": [...], "remains": {name: bytes}, "frozen": {attempt: bytes},
"freed_bytes": int, "unfinished_bytes": int, "problems": [str], "removed": [str], "emptied": [str], "spared": [str],
"stuck": [str]}``. Each checkpoint has
``name``, ``size_bytes``, ``goes`` and ``why`` as planned. The last four lists are what was done
(`ckptkit.tools.prune.prune.Pruned`), empty in a dry run. Asks on a terminal; without one, and with ``--json``, it
needs ``--yes`` or ``--dry-run``.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable, Sequence

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from ckptkit.cli.errors import FINE, PROBLEM, WrongUsageError, complain
from ckptkit.cli.no_run import refuse_no_run
from ckptkit.cli.storage_option import open_root
from ckptkit.cli.text import console_for_tables, plain_table, print_json, print_line, size, visible
from ckptkit.errors import StorageError
from ckptkit.run.keep_policy import KeepBest, KeepCertified, KeepEvery, KeepLatest, KeepPolicy
from ckptkit.storage import Storage
from ckptkit.tools.prune.plan import PrunePlan, Rule, plan_prune
from ckptkit.tools.prune.prune import Pruned, prune

_RESUME = "The checkpoints to keep are untouched: the same command removes the rest."
_KEEPS = "latest:N, every:OPTIMIZER_STEPS, best:N:METRIC:max|min or certified:N"


def run_prune(
    root: str,
    keep: Sequence[str],
    options: Iterable[str] = (),
    *,
    branches: bool = False,
    unfinished: bool = False,
    dry_run: bool = False,
    yes: bool = False,
    as_json: bool,
    ask: Callable[[str], bool] | None = None,
) -> int:
    """Plan, print, ask and remove; returns the exit code.

    Args:
        root: A path or a URL.
        keep: The policies for the lineage, each as typed.
        options: Options of its storage.
        branches: Whether to remove checkpoints off the lineage, too.
        unfinished: Whether to empty the folders of all saves that did not end.
        dry_run: Whether to plan only.
        yes: Whether to remove without asking.
        as_json: Whether to print one JSON document.
        ask: Asks the person; None if nobody can answer.

    Raises:
        WrongUsageError: If an option is invalid or missing, or the command must ask and cannot.
        CheckpointNotFoundError: If ``root`` cannot be a run: the folder does not exist, or holds something else.
        CkptKitError: As in `ckptkit.tools.prune.prune.prune`.
    """
    rules = [Rule(one, parse_keep(one)) for one in keep]
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
    url = storage.url
    if not as_json:
        _print_plan(url, plan)
    pruned = Pruned()
    is_any = bool(plan.doomed or plan.remains or plan.frozen)
    if is_any and not dry_run and (yes or (ask is not None and ask(_question(plan)))):
        pruned = _carry_out(storage, plan, rules, branches=branches, unfinished=unfinished)
        if not as_json:
            _print_done(pruned)
    elif is_any and not as_json:
        _print("nothing was removed")
    if as_json:
        print_json({"root": url, "dry_run": dry_run, **_as_json(plan, pruned)})
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
        raise WrongUsageError(f"--keep {text}: {error}; give {_KEEPS}") from error
    raise WrongUsageError(f"--keep {text}: give {_KEEPS}")


def _carry_out(storage: Storage, plan: PrunePlan, rules: Sequence[Rule], *, branches: bool, unfinished: bool) -> Pruned:
    console = Console(stderr=True)
    columns = (TextColumn("removing"), BarColumn(), MofNCompleteColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("removing", total=len(plan.doomed))
            return prune(
                storage,
                plan,
                rules,
                branches=branches,
                unfinished=unfinished,
                token=secrets.token_hex(16),
                done=lambda name: bar.advance(task),
            )
    except StorageError as error:
        raise StorageError(f"{error} {_RESUME}") from error
    except KeyboardInterrupt:
        complain(f"interrupted before all was removed. {_RESUME}")
        raise


def _question(plan: PrunePlan) -> str:
    return f"Remove {_counted(len(plan.doomed))} for good, {size(plan.freed_bytes)} in all?"


def _counted(many: int) -> str:
    return f"{many} checkpoint{'' if many == 1 else 's'}"


def _print_plan(url: str, plan: PrunePlan) -> None:
    if not plan.decisions:
        _print(f"no committed checkpoint at {url}")
        return
    console_for_tables().print(_table(url, plan))
    if plan.remains:
        _print(
            f"remains of folders that never were, or no longer are, checkpoints: {', '.join(map(str, plan.remains))}"
        )
    if plan.frozen:
        attempts = ", ".join(map(str, plan.frozen))
        _print(f"shared weights that no checkpoint will use: of attempt {attempts}")
    if plan.unfinished_bytes:
        _print(
            f"{size(plan.unfinished_bytes)} of saves that have not ended stay, since a job may be writing. If none is, "
            "the next start removes them, and so does --unfinished"
        )
    stays = len(plan.decisions) - len(plan.doomed)
    _print(f"{_counted(len(plan.doomed))} to be removed, {stays} to stay; {size(plan.freed_bytes)} to be freed")


def _table(url: str, plan: PrunePlan) -> Table:
    table = plain_table(url)
    table.add_column("checkpoint", no_wrap=True)
    table.add_column("size", justify="right")
    table.add_column("")
    table.add_column("why")
    for one in plan.decisions:
        style = "red" if one.goes else ""
        table.add_row(
            str(one.name), size(one.size_bytes), "goes" if one.goes else "stays", Text(visible(one.why)), style=style
        )
    return table


def _print_done(pruned: Pruned) -> None:
    _print(f"{_counted(len(pruned.removed))} removed")
    if pruned.stuck:
        complain(f"could not be removed, as the log says: {', '.join(pruned.stuck)}. {_RESUME}")
    if pruned.spared:
        _print(f"not removed by this command, since the run has changed meanwhile: {', '.join(pruned.spared)}")


def _as_json(plan: PrunePlan, pruned: Pruned) -> dict[str, object]:
    return {
        "checkpoints": [
            {"name": str(one.name), "size_bytes": one.size_bytes, "goes": one.goes, "why": one.why}
            for one in plan.decisions
        ],
        "remains": {str(name): size_bytes for name, size_bytes in plan.remains.items()},
        "frozen": {str(number): size_bytes for number, size_bytes in plan.frozen.items()},
        "freed_bytes": plan.freed_bytes,
        "unfinished_bytes": plan.unfinished_bytes,
        "problems": list(plan.problems),
        "removed": pruned.removed,
        "emptied": pruned.emptied,
        "spared": pruned.spared,
        "stuck": pruned.stuck,
    }


def _print(text: str) -> None:
    print_line(Console(), text)
