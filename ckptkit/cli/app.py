"""Declares the commands and their options; modules below `ckptkit.cli.commands` implement them."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ckptkit.cli.errors import CommandGroup
from ckptkit.cli.interchange import add_interchange
from ckptkit.cli.options import AsJson, Checkpoint, Command, Junit, Options, Root, complete_checkpoint, examples
from ckptkit.cli.reporting import add_reports
from ckptkit.cli.supervising import add_run

app = typer.Typer(
    name="ckptkit",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ckptkit import __version__

        print(f"ckptkit {__version__}")
        raise typer.Exit


@app.callback(epilog=examples("ckptkit demo", "ckptkit ls runs/vit-17", "ckptkit ls --help"))
def main(
    *,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="CKPTKIT_DEBUG", help="Show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Exact resume for interrupted MindSpore training.

    Exit codes: 0 fine, 1 a problem was found, 2 wrong usage, 3 a storage or a file could not be used.
    """


@app.command(epilog=examples("ckptkit demo", "ckptkit demo --mode pynative --seed 7"))
def demo(
    root: Annotated[
        str | None, typer.Option(help="Keep both runs below this path or URL, which must be new or empty.")
    ] = None,
    mode: Annotated[Literal["graph", "pynative"], typer.Option(help="MindSpore's execution mode.")] = "graph",
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the network and the data order.")] = 1,
) -> None:
    """Train on real digits, kill it with SIGKILL three times, resume, and compare every bit."""
    from ckptkit.cli.commands.demo import run_demo

    raise typer.Exit(run_demo(root, mode, seed))


@app.command(
    "ls",
    no_args_is_help=True,
    epilog=examples("ckptkit ls runs/vit-17", "ckptkit ls s3://bucket/vit-17 --json --all"),
)
def list_checkpoints(
    root: Root,
    *,
    show_all: Annotated[bool, typer.Option("--all", help="List every one, not only the newest 50.")] = False,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """List the newest committed checkpoints of a run, oldest first.

    Exits with 1 if one of them is seen to be corrupt; it looks at their manifests only.
    """
    from datetime import datetime, timezone

    from ckptkit.cli.commands.ls import run_ls

    raise typer.Exit(run_ls(root, options or [], now=datetime.now(timezone.utc), as_json=as_json, show_all=show_all))


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "ckptkit show runs/vit-17",
        "ckptkit show runs/vit-17 a000002-c0000001200-m0002 --tensors",
        "ckptkit show s3://bucket/vit-17 --tensor head.weight --histogram",
    ),
)
def show(
    root: Root,
    checkpoint: Checkpoint = "latest",
    *,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    tensor: Annotated[
        str | None, typer.Option(metavar="NAME", help="Read this tensor, verify it and summarise its elements.")
    ] = None,
    histogram: Annotated[bool, typer.Option("--histogram", help="Also count them in intervals.")] = False,
    state: Annotated[
        bool, typer.Option("--state", help="Show the state besides the model's tensors: counters, data position, RNG.")
    ] = False,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Show this rank. Default: all files; tensors and state of rank 0.")
    ] = None,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Show what is inside a checkpoint: progress, files by role with their digests, and more on request.

    Exits with 1 if a document of it, or the tensor asked for, is corrupt; all bytes are for ckptkit verify.
    """
    from datetime import datetime, timezone

    from ckptkit.cli.commands.show import Wanted, run_show

    wanted = Wanted(rank, tensors, tensor, histogram, state)
    now = datetime.now(timezone.utc)
    raise typer.Exit(run_show(root, checkpoint, options or [], wanted=wanted, now=now, as_json=as_json))


add_reports(app)
add_interchange(app)


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "ckptkit copy runs/vit-17 /backup/vit-17",
        "ckptkit copy runs/vit-17 s3://bucket/vit-17 --target-option endpoint_url=https://s3.example",
    ),
)
def copy(
    source: Annotated[str, typer.Argument(help="The run root to copy: a path or a URL.")],
    target: Annotated[str, typer.Argument(help="Where to: a new root, or one that this command has begun to fill.")],
    *,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|latest",
            help="Copy this one alone, as a new run that continues from it.",
            autocompletion=complete_checkpoint,
        ),
    ] = None,
    source_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Option of the source's storage; repeatable.")
    ] = None,
    target_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Option of the target's storage; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a run from one root to another, every byte verified; run it again to resume or to bring the copy up to date.

    Exits with 1 if a checkpoint is corrupt, or something else lies at the target, which then stays as it is.
    """
    from ckptkit.cli.commands.copy import run_copy

    code = run_copy(
        source,
        target,
        checkpoint=checkpoint,
        source_options=source_option or [],
        target_options=target_option or [],
        as_json=as_json,
    )
    raise typer.Exit(code)


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "ckptkit verify runs/vit-17",
        "ckptkit verify obs://bucket/vit-17 latest --option endpoint_url=https://obs.example",
    ),
)
def verify(
    root: Root,
    checkpoint: Annotated[
        str | None,
        typer.Argument(help="This one alone: a name, or latest.", autocompletion=complete_checkpoint),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Every checkpoint, which is the default.")] = False,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Prove every byte of a run against its digests, name all that is wrong, and say what a start would do.

    Exits with 1 if something is corrupt. Folders without a COMMIT and void ones are reported and are no problem.
    """
    from ckptkit.cli.commands.verify import run_verify

    raise typer.Exit(run_verify(root, checkpoint, options or [], everything=everything, as_json=as_json))


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "ckptkit diff runs/vit-17 a000001-c0000000100-m0000 latest",
        "ckptkit diff runs/vit-17 s3://bucket/vit-17 --exit-code",
    ),
)
def diff(
    root: Root,
    a: Annotated[
        str,
        typer.Argument(
            help="A name that ckptkit ls shows, or latest; without B also another root, to compare the newest of both.",
            autocompletion=complete_checkpoint,
        ),
    ],
    b: Annotated[
        str | None, typer.Argument(help="Like A; default: the newest.", autocompletion=complete_checkpoint)
    ] = None,
    *,
    other_root: Annotated[str | None, typer.Option(metavar="URL", help="The root of B, if it is not ROOT.")] = None,
    top: Annotated[int, typer.Option(min=0, help="How many of the leaves that differ to list.")] = 20,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 also where anything differs.")] = False,
    options: Options = None,
    other_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Option of the other root's storage; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which leaves, counters and parts of the state differ between two checkpoints, and by how much.

    Exits with 1 if updates lie between the two and no weight has changed: one of them is stale. That they differ is no
    problem, but with --exit-code.
    """
    from ckptkit.cli.commands.diff import run_diff

    code = run_diff(
        root,
        a,
        b,
        options or [],
        other_root=other_root,
        other_options=other_option or [],
        top=top,
        exit_code=exit_code,
        as_json=as_json,
    )
    raise typer.Exit(code)


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "ckptkit prune runs/vit-17 --keep latest:3 --keep every:1000 --dry-run",
        "ckptkit prune s3://bucket/vit-17 --keep best:2:accuracy:max --branches --yes",
    ),
)
def prune(
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
) -> None:
    """Remove checkpoints that no policy keeps, after showing what goes, what stays and why.

    A job may be running. The two newest checkpoints always stay, and so does what cannot be read or may be needed by
    what cannot be read; then it exits with 1. Without a terminal, give --yes or --dry-run.
    """
    from ckptkit.cli.commands.prune import asker, run_prune

    code = run_prune(
        root,
        keep or [],
        options or [],
        branches=branches,
        unfinished=unfinished,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
        ask=asker(),
    )
    raise typer.Exit(code)


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "ckptkit doctor --kills 5 -- python train.py --lr 0.1",
        "ckptkit doctor --within 5m --junit doctor.xml -- python train.py",
    ),
)
def doctor(
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
    as_json: AsJson = False,
) -> None:
    """Run a training script in scratch roots, kill and resume it, and name the first thing that differs.

    Exits with 0 if it is exact, 1 if it is not, 2 if it cannot be examined, 3 if a file cannot be written.
    """
    from datetime import timedelta

    from ckptkit.cli.commands.doctor import run_doctor
    from ckptkit.cli.run_root import positive_duration
    from ckptkit.tools.doctor.report import Options

    limit = None if within is None else positive_duration("--within", within)
    options = Options(steps, kills, seed, timedelta(seconds=timeout), limit, own_saves)
    raise typer.Exit(run_doctor(command or [], options, keep=keep, as_json=as_json, junit=junit))


@app.command(no_args_is_help=True, epilog=examples("ckptkit replay runs/a --to latest -- python train.py --lr 0.1"))
def replay(
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
) -> None:
    """Train a stretch of a run again in a scratch root, and compare every bit with the run's own checkpoints.

    Exits with 0 if they are equal, 1 if they are not, 2 if the script cannot be replayed, 3 if a storage failed.
    """
    from datetime import timedelta

    from ckptkit.cli.commands.replay import run_replay

    code = run_replay(
        root,
        command or [],
        options or [],
        begin=begin,
        end=end,
        keep=keep,
        time_limit=timedelta(seconds=timeout),
        record=record,
        as_json=as_json,
        junit=junit,
    )
    raise typer.Exit(code)


add_run(app)
