"""A real process under a real SIGKILL: what `Killed` stands for elsewhere, at the moments that matter most."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ckptkit

from .scenario import check_new_start, committed, folders, name_at, tree

VICTIM = """
import os, signal, sys
from ckptkit.manager import CheckpointManager
from ckptkit.policies import KeepLatest
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

root, place, operation, key, when = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

storage = FaultyStorage(LocalStorage(root))
manager, run = CheckpointManager(storage, keep=KeepLatest(2)), NumpyRun(accumulation_steps=4)

def save_at(batches):
    for _ in run.train_until(batches):
        pass
    return manager.save(run).result()

manager.restore(run)
for batches in (2, 4, 6):
    save_at(batches)
if place == "call":
    storage.inject(Fault(die, operations={operation}, key=key, when=when))
else:
    os.link = lambda source, target: die()
save_at(8)
"""

AT_8 = name_at(1, 8)
MOMENTS = {
    "half of a shard": ("call", "write", f"checkpoints/{AT_8}/rank-00000/weights-000.safetensors", "during"),
    "half of the manifest": ("call", "write", f"checkpoints/{AT_8}/manifest.json", "during"),
    "before COMMIT": ("call", "create", f"checkpoints/{AT_8}/COMMIT", "before"),
    "between the temporary file of COMMIT and its link": ("link", "", "", ""),
    "after COMMIT": ("call", "create", f"checkpoints/{AT_8}/COMMIT", "after"),
    "after retention removed a COMMIT": ("call", "delete", f"checkpoints/{name_at(1, 4)}/COMMIT", "after"),
    "half of the data that retention removes": ("call", "delete", f"checkpoints/{name_at(1, 4)}/rank*", "during"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_process_leaves_a_run_that_the_next_one_continues_bit_by_bit(tmp_path, moment):
    place = MOMENTS[moment]
    home = str(Path(ckptkit.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", VICTIM, str(tmp_path), *place],
        env={**os.environ, "PYTHONPATH": home},
        check=False,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    landed = place[1] == "delete" or moment == "after COMMIT"
    assert (AT_8 in committed(tmp_path)) == landed
    assert (folders(tree(tmp_path)).uncommitted == [AT_8]) == (not landed)
    if moment == "between the temporary file of COMMIT and its link":
        assert any(key.endswith(".tmp") for key in tree(tmp_path))
    check_new_start(tmp_path, latest=AT_8 if landed else name_at(1, 6))
    assert not any(key.endswith(".tmp") for key in tree(tmp_path))
