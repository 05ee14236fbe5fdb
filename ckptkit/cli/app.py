"""The commands and their options; what they do is in a module of the same name each."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

app = typer.Typer(
    name="ckptkit",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Exact resume for interrupted MindSpore training.",
)


@app.callback()
def main() -> None:
    """Exact resume for interrupted MindSpore training."""


@app.command()
def demo(
    root: Annotated[
        str | None, typer.Option(help="Keep both runs below this path or URL, which must be new or empty.")
    ] = None,
    mode: Annotated[Literal["graph", "pynative"], typer.Option(help="MindSpore's execution mode.")] = "graph",
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of the network and the data order.")] = 1,
) -> None:
    """Train on real digits, kill it with SIGKILL three times, resume, and compare every bit.

    Example: ckptkit demo --mode pynative --seed 7
    """
    from ckptkit.cli.demo import run_demo

    raise typer.Exit(run_demo(root, mode, seed))


@app.command("ls")
def list_checkpoints(
    root: Annotated[str, typer.Argument(help="The run root: a path or a URL.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="List every one, not only the newest 50.")] = False,
) -> None:
    """List the newest committed checkpoints of a run, oldest first.

    Exits with 1 if one of them is seen to be corrupt; it looks at their manifests only. Example: ckptkit ls runs/vit-17
    """
    from ckptkit.cli.ls import run_ls

    raise typer.Exit(run_ls(root, as_json=as_json, show_all=show_all))


@app.command()
def report(
    root: Annotated[str, typer.Argument(help="The run root: a path or a URL.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write the page.")] = "report.html",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead, and write no page.")
    ] = False,
) -> None:
    """Draw a run as one page that works offline: attempts, loss across restarts, what saves cost, what was removed.

    Exits with 1 if a file of the run is corrupt; the page shows the rest. Example: ckptkit report runs/vit-17
    """
    from ckptkit.cli.report import run_report

    raise typer.Exit(run_report(root, output, as_json=as_json))


@app.command()
def copy(
    source: Annotated[str, typer.Argument(help="The run root to copy: a path or a URL.")],
    target: Annotated[str, typer.Argument(help="Where to: a new root, or one that this command has begun to fill.")],
    *,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="NAME|latest", help="Copy this one alone, as a new run that goes on from it."),
    ] = None,
    source_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="For the source's storage; repeatable.")
    ] = None,
    target_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="For the target's storage; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Copy a run from one root to another, every byte verified; run it again to resume or to bring the copy up to date.

    Exits with 1 if a checkpoint is corrupt, or something else lies at the target, which then stays as it is.
    Example: ckptkit copy runs/vit-17 /backup/vit-17
    """
    from ckptkit.cli.copy import run_copy

    code = run_copy(
        source,
        target,
        checkpoint=checkpoint,
        source_options=source_option or [],
        target_options=target_option or [],
        as_json=as_json,
    )
    raise typer.Exit(code)


@app.command()
def doctor(
    command: Annotated[list[str] | None, typer.Argument(help="The command that trains, after two dashes.")] = None,
    *,
    steps: Annotated[int, typer.Option(min=2, help="Micro-steps of each life.")] = 24,
    kills: Annotated[int, typer.Option(min=1, help="How many lives are killed with SIGKILL.")] = 3,
    every_micro_step: Annotated[bool, typer.Option(help="Kill after each micro-step; one life for each.")] = False,
    seed: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Where the script sets none.")] = 1,
    keep: Annotated[str | None, typer.Option(help="A new or empty folder for traces and logs, which stay.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that each life may take.")] = 3600,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Run a training script in scratch roots, kill and resume it, and name the first thing that differs.

    Exits with 0 if it is exact, 1 if it is not. Example: ckptkit doctor --kills 5 -- python train.py --lr 0.1
    """
    from datetime import timedelta

    from ckptkit.doctor.command import run_doctor
    from ckptkit.doctor.examine import Options

    options = Options(steps, kills, every_micro_step, seed, timedelta(seconds=timeout))
    raise typer.Exit(run_doctor(command or [], options, keep=keep, as_json=as_json))
