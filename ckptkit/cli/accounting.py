"""Declares ``ckptkit goodput`` and its options; `ckptkit.cli.commands.goodput` implements it."""

from __future__ import annotations

import typer

from ckptkit.cli.options import AsJson, Options, Root, examples


def add_goodput(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    epilog = examples("ckptkit goodput runs/vit-17", "ckptkit goodput runs/vit-17 --json")
    app.command("goodput", no_args_is_help=True, epilog=epilog)(goodput)


def goodput(root: Root, *, options: Options = None, as_json: AsJson = False) -> None:
    """Show what the seconds of a run went to, what its deaths cost, and what other intervals of saves would cost.

    Exits with 1 if a file of the run is corrupt; the rest is shown.
    """
    from datetime import datetime, timezone

    from ckptkit.cli.commands.goodput import run_goodput

    raise typer.Exit(run_goodput(root, options or [], now=datetime.now(timezone.utc), as_json=as_json))
