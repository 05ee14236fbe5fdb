"""Implements ``ckptkit demo``: kills and resumes a training three times beside the same training uninterrupted.

Both run in separate processes (`ckptkit.mindspore.demo`). This module starts them, compares their traces and prints the
verdict. On a device that is asked for, it also prints the text of an issue. It does not import MindSpore.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ckptkit.cli.errors import FINE, PROBLEM, WrongUsageError
from ckptkit.cli.options import open_root
from ckptkit.cli.output import print_line
from ckptkit.format.versions import versions
from ckptkit.storage import Listing

MICRO_STEPS = 180  # 6 epochs of 30 batches
NEEDED_ACCURACY = 0.95

# What kills each life of the interrupted run; the last life runs to the end.
DEATHS: tuple[tuple[str, dict[str, int]], ...] = (
    ("SIGKILL in mid-cycle", {"kill_after": 38}),
    ("SIGKILL while a save was being written", {"kill_in_save_after": 72}),
    ("SIGKILL right at the end of an epoch", {"kill_at_epoch": 4}),
    ("trained to the end", {}),
)
KINDS = {
    "parameters": "params",
    "moments": "moments",
    "accumulators": "accum.",
    "counters": "counters",
    "rng": "RNG",
    "batch": "batch",
}
EXACT_DRAWS = ("ckptkit.nn.Dropout", "ops.dropout", "ops.rand", "ops.randn")  # as docs/exactness.md promises


@dataclass
class DemoLife:
    """Holds the trace and the exit code of one process."""

    death: str
    exit_code: int
    resumed_from: str | None = None
    began_at: int = 0
    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    accuracy: float | None = None
    saves: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)  # what else it traced, by name


def run_demo(
    root: Annotated[
        str | None, typer.Option(help="Keep both runs below this path or URL, which must be new or empty.")
    ] = None,
    mode: Annotated[Literal["graph", "pynative"], typer.Option(help="MindSpore's execution mode.")] = "graph",
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the network and the data order.")] = 1,
    device: Annotated[
        Literal["Ascend", "GPU", "CPU"] | None, typer.Option(help="Prove it there, and print the text of an issue.")
    ] = None,
) -> int:
    """Train on real digits, kill it with SIGKILL three times, resume, and compare every bit.

    Examples:
        ckptkit demo
        ckptkit demo --mode pynative --seed 7
        ckptkit demo --device Ascend
    """
    console = Console()
    storage = open_root(root, writes=True) if root is not None else None
    if storage is not None and storage.list("") != Listing():
        raise WrongUsageError(f"{storage.url} is not empty; give a new folder")
    columns = (TextColumn("{task.description:20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    options = {"mode": mode, "seed": seed, "device": device or ""}
    with contextlib.ExitStack() as stack:
        # Traces and logs lie beside the runs if these are on this machine, else in a temporary folder.
        if storage is not None and not storage.is_remote:
            folder = Path(storage.url)
            folder.mkdir(parents=True, exist_ok=True)
            folder = folder.resolve()
        else:
            made = tempfile.TemporaryDirectory(prefix="ckptkit-demo-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
        bars = stack.enter_context(Progress(*columns, console=console))
        roots = storage.url if storage is not None else str(folder)
        straight = _start(folder, "uninterrupted", {**options, "root": f"{roots}/uninterrupted"})
        straight_bar = bars.add_task("uninterrupted", total=MICRO_STEPS)
        killed_bar = bars.add_task("killed and resumed", total=MICRO_STEPS)
        try:
            lives: list[DemoLife] = []
            for death, when in DEATHS:
                name = f"interrupted-{len(lives)}"
                process = _start(folder, name, {**options, **when, "root": f"{roots}/interrupted"})
                try:
                    _watch(process, folder, bars, {killed_bar: name, straight_bar: "uninterrupted"})
                finally:
                    process.kill()
                    exit_code = process.wait()
                lives.append(_life(folder, name, death, exit_code))
                if why := lives[-1].about.get("absent"):
                    raise WrongUsageError(_absent(device, lives[-1].about["mindspore"], why))
                expected = -signal.SIGKILL if when else 0
                if lives[-1].exit_code != expected:
                    return _report_crash(folder, name, lives[-1], options)
            _watch(straight, folder, bars, {straight_bar: "uninterrupted"})
        finally:
            straight.kill()
            exit_code = straight.wait()  # what it writes is over before its folder goes
        reference = _life(folder, "uninterrupted", "ran to the end", exit_code)
        if reference.exit_code != 0:
            return _report_crash(folder, "uninterrupted", reference, options)
    code = _verdict(console, reference, lives)
    if device is None:
        return code
    held: list[tuple[bool | None, str]] = [(code == FINE, "a training killed three times equals an uninterrupted one")]
    held += _on_device(reference, lives)
    return _print_issue(options, reference, held)


def _start(folder: Path, name: str, plan: dict[str, Any]) -> subprocess.Popen[bytes]:
    plan = {"trace": str(folder / f"{name}.trace"), **plan}
    # A scratch working directory, since MindSpore writes compiler files into it; and a log file, since it logs a lot.
    litter = folder / "scratch" / name
    litter.mkdir(parents=True)
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - our own module with our own arguments
            [sys.executable, "-m", "ckptkit.mindspore.demo", json.dumps(plan)],
            cwd=litter,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"GLOG_v": "3", **os.environ},
        )


def _watch(process: subprocess.Popen[bytes], folder: Path, bars: Progress, shown: dict[Any, str]) -> None:
    """Wait for ``process`` and update the bars from the traces."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
        for bar, name in shown.items():
            steps = [line["step"] for line in _lines(folder / f"{name}.trace") if "step" in line]
            if steps:
                bars.update(bar, completed=steps[-1])
        if process.poll() is not None:
            return


def _lines(trace: Path) -> list[dict[str, Any]]:
    if not trace.exists():
        return []
    text = trace.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _life(folder: Path, name: str, death: str, exit_code: int) -> DemoLife:
    life = DemoLife(death, exit_code)
    for line in _lines(folder / f"{name}.trace"):
        if "step" in line:
            life.steps[line["step"]] = line
        elif "saved" in line:
            life.saves.append(line)
        else:
            life.about |= line
    life.resumed_from, life.began_at = life.about.get("resumed_from"), life.about.get("batches_delivered", 0)
    life.accuracy = life.about.get("accuracy")
    return life


def _verdict(console: Console, reference: DemoLife, lives: list[DemoLife]) -> int:
    table = Table(title="Each life, compared with the uninterrupted run", title_justify="left", show_lines=True)
    table.add_column("life", overflow="fold")
    for short in KINDS.values():
        table.add_column(short, justify="center")
    disagreements = 0
    for life in lives:
        wrong = {kind: _disagreeing(life, reference, kind) for kind in KINDS}
        disagreements += sum(len(steps) for steps in wrong.values())
        cells = ["[green]equal[/green]" if not at else f"[red]not {at[0]}[/red]" for at in wrong.values()]
        begin = f"resumed from\n{life.resumed_from}" if life.resumed_from else "started fresh"
        span = f"micro-steps {min(life.steps, default=0)}-{max(life.steps, default=0)}"
        table.add_row(f"{begin}\n{span}\n{life.death}", *cells)
    console.print(table)
    begun_right = all(min(life.steps, default=0) == life.began_at + 1 for life in lives)
    resumed = all(life.resumed_from for life in lives[1:])  # else the demo has shown nothing
    whole = set(reference.steps) == set(range(1, MICRO_STEPS + 1)) == set().union(*(life.steps for life in lives))
    accuracy, alone = lives[-1].accuracy or 0.0, reference.accuracy or 0.0
    console.print(
        f"{sum(len(life.steps) for life in lives)} micro-steps compared in {len(KINDS)} respects, "
        f"{disagreements} disagreements. Accuracy on held-out digits: {accuracy:.1%} (uninterrupted {alone:.1%})."
    )
    good = disagreements == 0 and begun_right and resumed and whole and accuracy == alone and accuracy > NEEDED_ACCURACY
    if good:
        console.print("[bold green]Killed three times, and not one bit differs.[/bold green]")
    else:
        console.print("[bold red]The runs do NOT agree. Please report this with the table above.[/bold red]")
    return FINE if good else PROBLEM


def _disagreeing(life: DemoLife, reference: DemoLife, kind: str) -> list[int]:
    return [step for step, line in sorted(life.steps.items()) if line[kind] != reference.steps.get(step, {}).get(kind)]


def _on_device(reference: DemoLife, lives: Sequence[DemoLife]) -> Iterator[tuple[bool | None, str]]:
    """Yield what only a device can show, each with whether it holds; None if it is not promised."""
    first, *resumed = lives
    yield not any(_disagreeing(first, reference, kind) for kind in KINDS), "before any kill, two trainings are equal"
    updated, stale = reference.about["updated"], reference.about["stale"]
    yield not stale, f"updates change {updated - len(stale)} of {updated} weights and moments, as the device gives them"
    saves = [save for life in (reference, *lives) for save in life.saves]
    by_slices = sum(save["sliced"] > 0 and save["in_place"] == 0 for save in saves)
    yield by_slices == len(saves) > 0, f"{by_slices} of {len(saves)} saves were taken by slices"
    restored = [
        all(life.about["restored"][kind] == reference.steps[life.began_at][kind] for kind in ("parameters", "moments"))
        for life in resumed
    ]
    yield all(restored), f"{sum(restored)} of {len(resumed)} restores put into the device's memory what was saved"
    for operator in reference.steps[MICRO_STEPS]["draws"]:
        draws = [
            (line["draws"][operator], reference.steps[step]["draws"][operator])
            for life in resumed
            for step, line in life.steps.items()
        ]
        equal = sum(mine == its != "" for mine, its in draws)
        given = f"gives {equal} of {len(draws)} draws again" if any(draws[0]) else "has no kernel on this device"
        yield equal == len(draws) if operator in EXACT_DRAWS else None, f"after a resume, {operator} {given}"


def _print_issue(options: dict[str, Any], life: DemoLife, held: Sequence[tuple[bool | None, str]]) -> int:
    """Print what to send, and return the exit code."""
    libraries = {**versions(), "mindspore": life.about.get("mindspore", "?"), "Python": platform.python_version()}
    words = {True: "held", False: "NOT HELD", None: "not promised"}
    lines = [
        "Please send these lines as an issue, whatever they say: ckptkit was tested on CPU only.",
        f"ckptkit demo {' '.join(f'--{name} {value}' for name, value in options.items())}",
        f"device: {life.about.get('device', '?')}, {platform.platform()}",
        f"versions: {', '.join(f'{name} {version}' for name, version in libraries.items())}",
        *(f"{words[holds]}: {what}" for holds, what in held),
    ]
    for line in lines:
        print_line(line)
    return PROBLEM if any(holds is False for holds, _ in held) else FINE


def _absent(device: str | None, version: str, why: str) -> str:
    return (
        f"MindSpore {version} cannot use {device} here: {why}.\n"
        f"See that its driver lists the device (npu-smi info, nvidia-smi), install the MindSpore that is built for it\n"
        "(https://www.mindspore.cn/install), or try --device CPU."
    )


def _report_crash(folder: Path, name: str, life: DemoLife, options: dict[str, Any]) -> int:
    log = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
    console = Console(stderr=True)
    ended = f"the process {name} ended with {life.exit_code}, which was not planned"
    console.print(f"[red]{ended}. Its last output:[/red]")
    console.print(log[-3000:], highlight=False, markup=False)
    return (
        _print_issue(options, life, [(False, f"{ended}: send its last output, too")]) if options["device"] else PROBLEM
    )
