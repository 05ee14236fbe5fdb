"""Power cuts on real file systems: ``PYTHONPATH=tests python -m crash.power.real_disks [ext4] [xfs] [btrfs]``, as root.

The file system lies on a loop device over a `support.disk.device`, which writes down what it is asked for. A job saves
twice, dies by SIGKILL in its third save, and has a second life. Then for the time before each flush: what was flushed
earlier is there, and of the writes since none, all, or some, torn between blocks. Sixty such states of each job are
mounted, which replays the journal, and judged as in `power_stories`. Last comes a job whose fsyncs do nothing, whose
loss must be found. The exit code is 1 if anything is otherwise.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from support.disk.device import Device, Epoch
from support.disk.recorder import CALLS, Disk
from support.runs.scenario import Life

from ckptkit.errors import CkptKitError
from ckptkit.storage import local
from ckptkit.storage.system_calls import SystemCalls
from ckptkit.testing.faults import Fault

from .power_stories import SmallDirect, whole_run

# By file system: its size in MiB, and what makes it.
MAKERS = {
    "ext4": (24, ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]),
    "xfs": (320, ["mkfs.xfs", "-q", "-f", "-K"]),
    "btrfs": (128, ["mkfs.btrfs", "-q", "-f", "-K"]),
}
BLOCK_BYTES = 4096


def job(root: Path, nth: int, *, careless: bool) -> None:
    """A life that tells of its saves, and waits until that is written down; dies at the ``nth`` call of its third save.

    If ``nth`` is 0, it does not; if it is ``careless``, its fsyncs do nothing.
    """
    local.LARGE_BYTES = 96  # so that some shards go around the page cache, and some do not
    if careless:
        SystemCalls.fsync = lambda self, descriptor: None  # type: ignore[method-assign]
    die = Fault(lambda: os.kill(os.getpid(), signal.SIGKILL), operations=CALLS, nth=max(nth, 1))
    with Disk(root.parent.parent) as disk:
        life = Life(SmallDirect(root))
        life.restore()
        for number in range(3):
            calls = len(disk.calls)
            if nth and number == 2:
                disk.inject(die)
            life.saved_at(life.run.batches // 2 * 2 + 2)
            print(life.run.batches, len(disk.calls) - calls, flush=True)
            sys.stdin.readline()


def live(device: Device, root: Path, nth: int = 0, *, careless: bool = False) -> int:
    """Run `job` in a process; returns how many calls its last save made."""
    command = [sys.executable, "-m", "crash.power.real_disks", "--job", str(root), str(nth), str(int(careless))]
    calls = 0
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], **pipes) as process:
        for line in process.stdout:
            batches, calls = map(int, line.split())
            device.epochs[-1].reported = batches
            process.stdin.write("\n")
            process.stdin.flush()
    assert process.returncode == (-signal.SIGKILL if nth else 0)
    return calls


def run(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.args}: {done.stderr}"


@contextmanager
def mounted(kind: str, file: Path, place: Path) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    run("mount", "-o", "loop", "-t", kind, file, place)
    try:
        yield place
    finally:
        run("umount", place)


def recorded(kind: str, base: Path, nth: int, *, careless: bool = False) -> tuple[list[Epoch], int]:
    """Two lives on a copy of ``base``, the first one killed unless ``nth`` is 0; also the calls of the last save."""
    image, place = base.with_name("image"), base.with_name("device")
    run("cp", "--sparse=always", base, image)
    device = Device(image, place)
    try:
        with mounted(kind, place, base.with_name("disk")) as disk:
            root = disk / "new/run"
            if nth:
                live(device, root, nth)
            calls = live(device, root, careless=careless)
            epochs = list(device.epochs)  # an unmount writes all that is left
    finally:
        run("umount", place)
    return epochs, calls


def kept(writes: Sequence[tuple[int, bytes]], how: str, random: Random) -> list[tuple[int, bytes]]:
    """Of writes that no flush followed."""
    if how == "torn":
        writes = [(at + n, data[n : n + BLOCK_BYTES]) for at, data in writes for n in range(0, len(data), BLOCK_BYTES)]
    share = {"none": 0, "all": 1}.get(how, random.choice([0.2, 0.5, 0.8]))
    return [one for one in writes if random.random() < share]


@dataclass
class Found:
    """What cuts have shown."""

    flushes: int = 0
    states: int = 0
    after_report: int = 0
    wrong: list[str] = field(default_factory=list)


def cut(kind: str, base: Path, epochs: Sequence[Epoch], most: int, found: Found) -> None:
    """Judge at most ``most`` states, drawn by chance; ``base`` is what the device held at first."""
    random = Random(most)
    ways = ("none", "all", "some", "some", "torn", "torn")
    each = [(number, how) for number, one in enumerate(epochs) for how in (ways if one.writes else ways[:1])]
    durable, state = base.with_name("durable"), base.with_name("state")
    run("cp", "--sparse=always", base, durable)
    found.flushes += len(epochs) - 1
    flushed = 0
    for number, how in sorted(random.sample(each, min(most, len(each)))):
        for epoch in epochs[flushed:number]:
            put(durable, epoch.writes)
        flushed = number
        reported = max(epoch.reported for epoch in epochs[: number + 1])
        run("cp", "--sparse=always", durable, state)
        put(state, kept(epochs[number].writes, how, random))
        found.states += 1
        found.after_report += reported > 0
        try:
            with mounted(kind, state, base.with_name("left")) as left:
                whole_run(left / "new/run", reported)
        except (AssertionError, CkptKitError) as error:
            found.wrong.append(f"{kind}, before flush {number} of {len(epochs)}, {how} kept: {error}")


def put(image: Path, writes: Sequence[tuple[int, bytes]]) -> None:
    with image.open("r+b") as file:
        for offset, data in writes:
            file.seek(offset)
            file.write(data)


def missing(kind: str) -> str | None:
    """Why this cannot run here; None if it can."""
    if os.geteuid() != 0:
        return "only root mounts"
    needed = ["/dev/fuse", "/dev/loop-control", shutil.which(MAKERS[kind][1][0]) or MAKERS[kind][1][0]]
    return next((f"there is no {one}" for one in needed if not os.path.exists(one)), None)


def show(kind: str, folder: Path, *, kills: int, most: int) -> tuple[Found, Found]:
    """What cuts find after so many kills, ``most`` states each, and what they find where fsyncs do nothing."""
    base = folder / "base"
    size, command = MAKERS[kind]
    with base.open("wb") as file:
        file.truncate(size << 20)
    run(*command, base)
    sound, careless = Found(), Found()
    epochs, calls = recorded(kind, base, 0)
    cut(kind, base, epochs, most, sound)
    for nth in sorted(Random(kind).sample(range(1, calls + 1), kills)):
        cut(kind, base, recorded(kind, base, nth)[0], most, sound)
    cut(kind, base, recorded(kind, base, 0, careless=True)[0], most, careless)
    return sound, careless


def main(arguments: Sequence[str]) -> int:
    """Run it all and say what was found."""
    logging.disable(logging.WARNING)
    if arguments[:1] == ["--job"]:
        job(Path(arguments[1]), int(arguments[2]), careless=arguments[3] == "1")
        return 0
    failed = False
    for kind in arguments or MAKERS:
        if reason := missing(kind):
            print(f"{kind}: not tried: {reason}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            sound, careless = show(kind, Path(folder), kills=3, most=60)
        for what, one in ((kind, sound), (f"{kind} without fsyncs", careless)):
            figures = f"{one.flushes} flushes, {one.states} states, {one.after_report} of them after a report"
            print(f"{what}: {figures}; {len(one.wrong)} were wrong", flush=True)
        for wrong in sound.wrong[:9]:
            print(wrong)
        failed = failed or bool(sound.wrong) or not careless.wrong
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
