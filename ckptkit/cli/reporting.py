"""Declares ``ckptkit report`` and ``ckptkit goodput``; modules below `ckptkit.cli.commands` implement them."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptkit.cli.options import AsJson, Options, Root, examples


def add_reports(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    epilog = examples(
        "ckptkit report runs/vit-17",
        "ckptkit report s3://bucket/vit-17 -o vit.html",
        "ckptkit report runs/vit-17 --tensorboard logs/vit-17 --every 30s",
    )
    app.command("report", no_args_is_help=True, epilog=epilog)(report)
    epilog = examples("ckptkit goodput runs/vit-17", "ckptkit goodput runs/vit-17 --json")
    app.command("goodput", no_args_is_help=True, epilog=epilog)(goodput)


def report(
    root: Root,
    *,
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write the page.")] = "report.html",
    tensorboard: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write the curves there for TensorBoard, and no page.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="EXPERIMENT", help="Log the curves to MLflow, and write no page.")
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="FILE.prom", help="Write the newest values for Prometheus, and no page.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Repeat that, such as every 30s, until the run has finished.")
    ] = None,
    options: Options = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, and write no page.")] = False,
) -> None:
    """Draw a run as one page that works offline: attempts, loss across restarts, what saves cost, what was removed.

    Exits with 1 if a file of the run is corrupt; the page shows the rest.
    """
    import time
    from datetime import datetime, timezone

    from ckptkit.cli.commands.report import Monitors, run_monitors, run_report

    monitors = Monitors(tensorboard, mlflow, prometheus)
    if monitors.are_wanted(every=every, as_json=as_json):
        code = run_monitors(
            root,
            options or [],
            monitors=monitors,
            every=every,
            clock=lambda: datetime.now(timezone.utc),
            wait=time.sleep,
        )
    else:
        code = run_report(root, options or [], output=output, now=datetime.now(timezone.utc), as_json=as_json)
    raise typer.Exit(code)


def goodput(root: Root, *, options: Options = None, as_json: AsJson = False) -> None:
    """Show what the seconds of a run went to, what its deaths cost, and what other intervals of saves would cost.

    Exits with 1 if a file of the run is corrupt; the rest is shown.
    """
    from datetime import datetime, timezone

    from ckptkit.cli.commands.goodput import run_goodput

    raise typer.Exit(run_goodput(root, options or [], now=datetime.now(timezone.utc), as_json=as_json))
