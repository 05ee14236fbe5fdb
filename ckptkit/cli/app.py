"""Declares the commands and their options; modules below `ckptkit.cli.commands` implement them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Literal

import typer

from ckptkit.cli.errors import CommandGroup
from ckptkit.cli.options import (
    AsJson,
    Checkpoint,
    Command,
    Drop,
    Junit,
    NameMap,
    Options,
    Rename,
    Root,
    complete_checkpoint,
    examples,
)

app = typer.Typer(
    name="ckptkit",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _now() -> datetime:
    return datetime.now(timezone.utc)


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
) -> int:
    """Train on real digits, kill it with SIGKILL three times, resume, and compare every bit."""
    from ckptkit.cli.commands.demo import run_demo

    return run_demo(root, mode, seed)


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
) -> int:
    """List the newest committed checkpoints of a run, oldest first.

    Exits with 1 if one of them is seen to be corrupt; it looks at their manifests only.
    """
    from ckptkit.cli.commands.ls import run_ls

    return run_ls(root, options or [], now=_now(), as_json=as_json, show_all=show_all)


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
) -> int:
    """Show what is inside a checkpoint: progress, files by role with their digests, and more on request.

    Exits with 1 if a document of it, or the tensor asked for, is corrupt; all bytes are for ckptkit verify.
    """
    from ckptkit.cli.commands.show import Wanted, run_show

    wanted = Wanted(rank, tensors, tensor, histogram, state)
    return run_show(root, checkpoint, options or [], wanted=wanted, now=_now(), as_json=as_json)


@app.command(
    "report",
    no_args_is_help=True,
    epilog=examples(
        "ckptkit report runs/vit-17",
        "ckptkit report s3://bucket/vit-17 -o vit.html",
        "ckptkit report runs/vit-17 --tensorboard logs/vit-17 --every 30s",
    ),
)
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
) -> int:
    """Draw a run as one page that works offline: attempts, loss across restarts, what saves cost, what was removed.

    Exits with 1 if a file of the run is corrupt; the page shows the rest.
    """
    import time

    from ckptkit.cli.commands.report import Monitors, run_monitors, run_report

    monitors = Monitors(tensorboard, mlflow, prometheus)
    if monitors.are_wanted(every=every, as_json=as_json):
        return run_monitors(root, options or [], monitors=monitors, every=every, clock=_now, wait=time.sleep)
    return run_report(root, options or [], output=output, now=_now(), as_json=as_json)


@app.command(
    "goodput",
    no_args_is_help=True,
    epilog=examples(
        "ckptkit goodput runs/vit-17",
        "ckptkit goodput runs/vit-17 --json",
    ),
)
def goodput(root: Root, *, options: Options = None, as_json: AsJson = False) -> int:
    """Show what the seconds of a run went to, what its deaths cost, and what other intervals of saves would cost.

    Exits with 1 if a file of the run is corrupt; the rest is shown.
    """
    from ckptkit.cli.commands.goodput import run_goodput

    return run_goodput(root, options or [], now=_now(), as_json=as_json)


@app.command(
    "export",
    no_args_is_help=True,
    epilog=examples(
        "ckptkit export runs/vit-17 -o vit.ckpt",
        "ckptkit export runs/vit-17 -o vit.safetensors --rename backbone.=encoder. --drop head.",
        "ckptkit export s3://bucket/vit-17 a000002-c0000001200-m0000 -o vit.ckpt --with-optimizer",
    ),
)
def export_file(
    root: Root,
    checkpoint: Checkpoint = "latest",
    *,
    file: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="What to write, on this machine.")],
    with_optimizer: Annotated[
        bool, typer.Option("--with-optimizer", help="Also export what the optimizer owns, such as moments.")
    ] = False,
    name_map: NameMap = None,
    rename: Rename = None,
    drop: Drop = None,
    rank: Annotated[int, typer.Option(min=0, help="Take the values of this rank where each rank has its own.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    options: Options = None,
    as_json: AsJson = False,
) -> int:
    """Write the weights of a checkpoint to a .ckpt or .safetensors file that mindspore.load_checkpoint reads.

    Every byte is verified on the way. Exits with 1 if the checkpoint is corrupt or not there.
    """
    from ckptkit.cli.commands.export_import import ExportOptions, NameOptions, run_export

    names = NameOptions(name_map, rename or [], drop or [])
    wanted = ExportOptions(file, with_optimizer, rank, force, names)
    return run_export(root, checkpoint, options or [], wanted, as_json=as_json)


@app.command(
    "import",
    no_args_is_help=True,
    epilog=examples(
        "ckptkit import vit.ckpt runs/vit-18",
        "ckptkit import vit.safetensors runs/vit-18 --rename encoder.=backbone. --drop head.",
    ),
)
def import_file(
    file: Annotated[str, typer.Argument(help="A .ckpt, .safetensors or .safetensors.index.json file on this machine.")],
    root: Annotated[str, typer.Argument(help="The root of the new run, which must be empty: a path or a URL.")],
    *,
    name_map: NameMap = None,
    rename: Rename = None,
    drop: Drop = None,
    options: Options = None,
    as_json: AsJson = False,
) -> int:
    """Make a run whose first start begins with the weights of a file; everything else begins afresh.

    Exits with 1 if the file cannot be read or the root is not empty; nothing is written then.
    """
    from ckptkit.cli.commands.export_import import NameOptions, run_import

    names = NameOptions(name_map, rename or [], drop or [])
    return run_import(file, root, options or [], names, as_json=as_json)


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
) -> int:
    """Copy a run from one root to another, every byte verified; run it again to resume or to bring the copy up to date.

    Exits with 1 if a checkpoint is corrupt, or something else lies at the target, which then stays as it is.
    """
    from ckptkit.cli.commands.copy import run_copy

    return run_copy(
        source,
        target,
        checkpoint=checkpoint,
        source_options=source_option or [],
        target_options=target_option or [],
        as_json=as_json,
    )


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
) -> int:
    """Prove every byte of a run against its digests, name all that is wrong, and say what a start would do.

    Exits with 1 if something is corrupt. Folders without a COMMIT and void ones are reported and are no problem.
    """
    from ckptkit.cli.commands.verify import run_verify

    return run_verify(root, checkpoint, options or [], everything=everything, as_json=as_json)


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
) -> int:
    """Show which leaves, counters and parts of the state differ between two checkpoints, and by how much.

    Exits with 1 if updates lie between the two and no weight has changed: one of them is stale. That they differ is no
    problem, but with --exit-code.
    """
    from ckptkit.cli.commands.diff import run_diff

    return run_diff(
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
) -> int:
    """Remove checkpoints that no policy keeps, after showing what goes, what stays and why.

    A job may be running. The two newest checkpoints always stay, and so does what cannot be read or may be needed by
    what cannot be read; then it exits with 1. Without a terminal, give --yes or --dry-run.
    """
    from ckptkit.cli.commands.prune import asker, run_prune

    return run_prune(
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
) -> int:
    """Run a training script in scratch roots, kill and resume it, and name the first thing that differs.

    Exits with 0 if it is exact, 1 if it is not, 2 if it cannot be examined, 3 if a file cannot be written.
    """
    from ckptkit.cli.commands.doctor import run_doctor
    from ckptkit.cli.run_root import positive_duration
    from ckptkit.tools.doctor.report import DoctorOptions

    limit = None if within is None else positive_duration("--within", within)
    options = DoctorOptions(steps, kills, seed, timedelta(seconds=timeout), limit, own_saves)
    return run_doctor(command or [], options, keep=keep, as_json=as_json, junit=junit)


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
) -> int:
    """Train a stretch of a run again in a scratch root, and compare every bit with the run's own checkpoints.

    Exits with 0 if they are equal, 1 if they are not, 2 if the script cannot be replayed, 3 if a storage failed.
    """
    from ckptkit.cli.commands.replay import run_replay

    return run_replay(
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


@app.command(
    "run",
    no_args_is_help=True,
    epilog=examples(
        "ckptkit run -- python train.py",
        "ckptkit run --hang-after 5m --limit evaluating=2h -- msrun --worker_num=8 --join=True train.py",
    ),
)
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
) -> int:
    """Run a training command again and again until it is done; say why it died, and when a restart cannot help.

    Exits with 0 when it is done, 143 when it was asked to end, 65 if its code or data is at fault, 75 if too many lives
    made no progress, 2 if it was called wrongly.
    """
    from ckptkit.cli.commands.run import RunOptions, run_command

    typed = RunOptions(lives_without_progress, hang_after, limit or [], grace, longest_pause, options or [], metrics)
    return run_command(command or [], typed)
