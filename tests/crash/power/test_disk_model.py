"""The recorded disk: it sees what the kernel sees, and its model keeps to the rules."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from support.disk import Cut, Disk, cuts, nothing

from ckptkit.storage.system_calls import SYSTEM
from ckptkit.testing.faults import Fault

from .traced_program import BEGIN

# Of Linux, what changes a file system or waits for a disk, and what the recorder calls it.
TRACED = {
    **dict.fromkeys(["open", "openat", "openat2", "creat"], "open"),
    **dict.fromkeys(["write", "writev", "pwrite64", "pwritev", "pwritev2"], "write"),
    **dict.fromkeys(["truncate", "ftruncate"], "truncate"),
    **dict.fromkeys(["fsync", "fdatasync"], "fsync"),
    **dict.fromkeys(["link", "linkat"], "link"),
    **dict.fromkeys(["unlink", "unlinkat"], "unlink"),
    **dict.fromkeys(["mkdir", "mkdirat"], "mkdir"),
    **dict.fromkeys(["rename", "renameat", "renameat2"], "rename"),
    "rmdir": "rmdir",
    # Never called: were they, the recorder would not know them.
    **{call: call for call in ("symlink", "symlinkat", "mknod", "fallocate", "copy_file_range", "sendfile", "splice")},
    **{call: call for call in ("sync", "syncfs", "sync_file_range", "fchmod", "chmod", "utimensat")},
}
_CALL = re.compile(r"(\w+)\((.*)")
_PATHS = re.compile(r'"(/[^"]*)"|\d+<(/[^>]*)>')


def traced(text: str, folder: Path) -> Iterator[tuple[str, str]]:
    """What ``strace -f -y`` wrote, as operations and keys below ``folder``, in order."""
    for line in text.splitlines():
        match = _CALL.match(line.split(maxsplit=1)[1])  # behind the thread's number
        if match is None:
            continue  # the end of a call that was told, an exit or a signal
        name, arguments = match[1], match[2].rpartition(" = ")[0] or match[2]
        if TRACED[name] == "open" and not re.search("O_CREAT|O_TRUNC|O_WRONLY|O_RDWR", arguments):
            continue
        paths = [one or other for one, other in _PATHS.findall(arguments)]
        below = [path.removeprefix(f"{folder}/") for path in paths if path.startswith(f"{folder}/")]
        if below:
            yield "rmdir" if "AT_REMOVEDIR" in arguments else TRACED[name], below[-1]
        elif str(folder) in paths:
            yield TRACED[name], ""


@pytest.mark.extended
def test_recorder_sees_every_call_of_the_kernel(tmp_path):
    """By strace, which `apt-get install strace` brings; skipped where it is not, or may not trace."""
    folder, calls, trace = tmp_path / "disk", tmp_path / "calls.json", tmp_path / "trace"
    folder.mkdir()
    calls_of_interest = f"trace={','.join(f'?{one}' for one in TRACED)}"
    command = ["strace", *["-f", "-y", "-s", "0", "-o"], str(trace), "-e", calls_of_interest]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True, timeout=60)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"strace is not installed, or may not trace here: {error}")
    program = [sys.executable, "-m", "crash.power.traced_program", str(folder), str(calls)]
    tests = Path(__file__).parents[2]
    done = subprocess.run([*command, *program], cwd=tests, check=False, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    recorded = [tuple(one) for one in json.loads(calls.read_text())]
    assert {operation for operation, _ in recorded} >= {"open", "write", "fsync", "link", "rename", "unlink", "rmdir"}
    assert len(recorded) > 500
    seen = list(traced(trace.read_text(), folder))
    assert seen[seen.index(("mkdir", BEGIN)) + 1 :] == recorded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def new_file(path: Path, data: bytes, *, synced: bool) -> None:
    descriptor = SYSTEM.open_new(path)
    SYSTEM.write_all(descriptor, memoryview(data))
    if synced:
        SYSTEM.fsync(descriptor)
    os.close(descriptor)


def test_bytes_need_their_fsync_and_names_theirs(tmp_path):
    for file, above, left in (0, 0, {}), (1, 0, {}), (0, 1, {"a": b""}), (1, 1, {"a": b"1234"}):
        folder = tmp_path / f"{file}{above}"
        folder.mkdir()
        with Disk(folder) as disk:
            new_file(folder / "a", b"1234", synced=bool(file))
            if above:
                SYSTEM.fsync_folder(folder)
        assert disk.after_cut() == left


def test_fsync_covers_nothing_that_comes_later(folder):
    with Disk(folder) as disk:
        SYSTEM.fsync_folder(folder)
        SYSTEM.mkdir(folder / "a")
    assert disk.after_cut() == {}
    assert disk.log.after(next(iter(cuts(disk.log, Random(0), since=2)))) == {}


def test_what_a_failed_fsync_should_cover_is_lost(folder):
    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Disk(folder, [Fault(fail, operations={"fsync"})]) as disk:
        SYSTEM.mkdir(folder / "a")
        with pytest.raises(OSError, match="Input/output"):
            SYSTEM.fsync_folder(folder)
        SYSTEM.mkdir(folder / "b")
        SYSTEM.fsync_folder(folder)
    assert disk.after_cut() == {"b": None}


def test_names_that_went_or_changed_may_be_back(folder):
    (folder / "a").write_bytes(b"old")
    with Disk(folder) as disk:
        new_file(folder / "b", b"new", synced=True)
        SYSTEM.replace(folder / "b", folder / "a")
        SYSTEM.unlink(folder / "a")
    states = [disk.log.after(cut) for cut in cuts(disk.log, Random(0), since=len(disk.log))]
    for state in ({"a": b"old"}, {"a": b"old", "b": b"new"}, {"a": b"new"}, {"b": b"new"}, {}):
        assert state in states, state
    assert disk.after_cut() == {"a": b"old"}


def test_torn_write_may_lose_any_part(folder):
    with Disk(folder) as disk:
        new_file(folder / "a", b"1" * 9, synced=False)
        SYSTEM.fsync_folder(folder)
    left = {disk.log.after(cut)["a"] for cut in cuts(disk.log, Random(0), since=len(disk.log))}
    assert left >= {b"", bytes(9), b"1" * 9}
    assert any(0 < len(one) < 9 for one in left), "its end"
    assert any(one[:1] == one[-1:] == b"1" and 0 in one for one in left), "its middle"


def test_journal_keeps_no_name_after_a_lost_one(folder):
    with Disk(folder) as disk:
        for name in "abc":
            SYSTEM.mkdir(folder / name)
    kept = [cut for cut in cuts(disk.log, Random(0), since=3) if cut.how.startswith("a journal")]
    assert {"".join(disk.log.after(cut)) for cut in kept} == {"", "a", "ab", "abc"}


def test_mutant_of_a_log_loses_unsynced_data(folder):
    with Disk(folder) as disk:
        new_file(folder / "a", b"1234", synced=True)
        SYSTEM.fsync_folder(folder)
    entries = len(disk.log)
    careless = disk.log.moved(entries - 1, entries, 1)
    assert careless.after(Cut(entries, nothing, "")) == {"a": b"1234"}
    assert careless.after(Cut(2, nothing, "")) == {"a": b""}
