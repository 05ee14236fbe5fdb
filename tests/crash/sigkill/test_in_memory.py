"""A run root on tmpfs: after the OOM killer it is as on a disk; and that need not come."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.runs.grown import train
from support.runs.scenario import folders, tree

from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage.capacity import is_in_memory
from ckptkit.testing.state import NumpyRun

GROUP_BYTES = 512 << 20
SIZE = 8_000_000  # elements: 32 MB a tensor, three of them in each checkpoint, and one that is frozen

# A training whose checkpoints do not fit into its control group.
JOB = """
import sys
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Saving
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.testing.state import NumpyRun

root, size = sys.argv[1:]
manager, run = CheckpointManager(root, keep=KeepLatest(100), saving=Saving(on_error="warn")), NumpyRun(size=int(size))
manager.restore(run)
for batches in run.train_until(12):
    error = manager.save(run).exception()
    print(batches, "saved" if error is None else str(error).replace("\\n", " "), flush=True)
    if error is not None:
        break
for _ in run.train_until(20):
    pass
print("trained on", flush=True)
"""


@contextmanager
def small_control_group(limit_bytes: int) -> Iterator[list[str]]:
    """Give a program that enters a group of version 1 with so much memory, and becomes the program that follows it.

    Skips the test where this user may make no such group.
    """
    own = next((one for one in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in one), "::/none")
    group = Path("/sys/fs/cgroup/memory") / own.split(":", 2)[2].lstrip("/") / f"ckptkit-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"this user may make no control group: {error}")
    (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()


@pytest.fixture
def in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        assert is_in_memory(Path(folder))
        yield Path(folder) / "run"


@pytest.mark.extended
def test_save_that_would_get_training_killed_is_refused(in_memory: Path) -> None:
    with small_control_group(GROUP_BYTES) as within:
        ended = subprocess.run(
            [*within, sys.executable, "-c", JOB, str(in_memory), str(SIZE)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    *saved, refused, last = ended.stdout.splitlines()
    assert saved
    assert "by the memory limit of this container (/sys/fs/cgroup/memory/" in refused
    assert last == "trained on"
    found = folders(tree(in_memory))
    assert len(found.committed) == len(saved)
    assert found.uncommitted == found.void == []
    resumed, straight = NumpyRun(size=SIZE), NumpyRun(size=SIZE)
    assert CheckpointManager(in_memory).restore(resumed).checkpoint == found.committed[-1]
    train(straight, len(saved))
    assert resumed.digest() == straight.digest()
