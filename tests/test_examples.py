"""The examples run, resume after a SIGKILL to the same bits, and say so when they are complete."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ckptkit.run.find import Index
from ckptkit.run.read import open_checkpoint
from ckptkit.run.verify import load
from ckptkit.storage import LocalStorage

EXAMPLES = Path(__file__).parent.parent / "examples"

# Runs an example in a process that dies right after the n-th commit of a save.
KILLED = """
import os, runpy, signal, sys
from ckptkit.run.save import Saver

script, root, commits = sys.argv[1], sys.argv[2], int(sys.argv[3])
save = Saver.save
done = 0

def save_then_die(self, request):
    global done
    saved = save(self, request)
    done += 1
    if done == commits:
        os.kill(os.getpid(), signal.SIGKILL)
    return saved

Saver.save = save_then_die
sys.argv = [script, root]
runpy.run_path(script, run_name="__main__")
"""


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GLOG_v": "3"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def contents(root: Path) -> dict[str, bytes]:
    """Every tensor of the newest checkpoint, and what else it holds."""
    storage = LocalStorage(root)
    index = Index(storage)
    name = [one for one in index.names if index.is_committed(one)][-1]
    loaded = load(storage, open_checkpoint(storage, name, index.document(name.attempt)))
    tensors = {name: array.tobytes() for name, array in loaded.tensors.items()}
    return {
        **tensors,
        "progress": loaded.progress.model_dump_json().encode(),
        "state": repr(loaded.state).encode(),
    }


@pytest.mark.parametrize(("script", "commits"), [("own_loop.py", 2), ("fit_digits.py", 5)])
def test_a_killed_example_resumes_to_the_same_bits(script: str, commits: int, tmp_path: Path) -> None:
    path = str(EXAMPLES / script)
    alone = run([sys.executable, path, str(tmp_path / "alone")], tmp_path)
    assert alone.returncode == 0, alone.stderr
    killed = run([sys.executable, "-c", KILLED, path, str(tmp_path / "killed"), str(commits)], tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run([sys.executable, path, str(tmp_path / "killed")], tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert contents(tmp_path / "killed") == contents(tmp_path / "alone")

    again = run([sys.executable, path, str(tmp_path / "killed")], tmp_path)
    assert again.returncode == 0, again.stderr
    assert "training is complete" in again.stdout + again.stderr
