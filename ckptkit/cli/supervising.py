"""Declares ``ckptkit run`` and its options; `ckptkit.cli.commands.run` implements it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptkit.cli.options import Command, Options, examples


def add_run(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    epilog = examples(
        "ckptkit run -- python train.py",
        "ckptkit run --hang-after 5m --limit evaluating=2h -- msrun --worker_num=8 --join=True train.py",
    )
    app.command("run", no_args_is_help=True, epilog=epilog)(run)


def run(
    command: Command = None,
    *,
    lives_without_progress: Annotated[
        int, typer.Option(min=1, help="End after so many lives in a row that committed nothing new.")
    ] = 3,
    hang_after: Annotated[
        str, typer.Option(metavar="DURATION", help="Without a micro-step for so long, or 20 slow ones, it hangs.")
    ] = "10m",
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PHASE=DURATION",
            help="The same for another phase, such as evaluating or first_step, instead of 1h; repeatable.",
        ),
    ] = None,
    grace: Annotated[str, typer.Option(metavar="DURATION", help="Time from SIGTERM to SIGKILL.")] = "30s",
    longest_pause: Annotated[
        str, typer.Option(metavar="DURATION", help="The longest pause between two lives without progress.")
    ] = "5m",
    metrics: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write metrics for a monitor there: FILE.prom (Prometheus) or FILE.json."),
    ] = None,
    options: Options = None,
) -> None:
    """Run a training command again and again until it is done; say why it died, and when a restart cannot help.

    Exits with 0 when it is done, 143 when it was asked to end, 65 if its code or data is at fault, 75 if too many lives
    made no progress, 2 if it was called wrongly.
    """
    from ckptkit.cli.commands.run import RunOptions, run_command

    typed = RunOptions(lives_without_progress, hang_after, limit or [], grace, longest_pause, options or [], metrics)
    raise typer.Exit(run_command(command or [], typed))
