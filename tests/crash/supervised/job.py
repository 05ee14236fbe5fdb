"""A training in NumPy that dies as it is told to: ``python job.py ROOT PLAN``.

PLAN is a JSON list of ``[kind, micro_step]``, each of which happens once: what has happened is noted in PLAN.done
before it does. Every tenth micro-step is saved.
"""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import ckptkit as ck
from ckptkit.errors import StorageError
from ckptkit.testing.state import NumpyRun

TOTAL = 200
WORKERS: list[subprocess.Popen[bytes]] = []


def misfortune(kind: str) -> None:
    """Bring about a death of this process."""
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "crash":
        ctypes.string_at(0)
    elif kind == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "asleep":
        signal.pause()
    elif kind == "exception":
        raise ValueError("label 11 of 10")
    elif kind == "data-worker":  # one dies, and MindSpore answers
        WORKERS.append(subprocess.Popen(["/bin/sh", "-c", "kill -9 $$"]))  # kept: what is collected is waited for
        os.waitid(os.P_PID, WORKERS[0].pid, os.WEXITED | os.WNOWAIT)
        os.kill(os.getpid(), signal.SIGTERM)
    elif kind == "exit":
        os._exit(9)
    elif kind == "out-of-memory":
        used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (1 << 28), resource.RLIM_INFINITY))
        bytearray(1 << 34)
    elif kind == "disk-full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
    elif kind == "storage":
        raise StorageError("the bucket did not answer")
    elif kind == "escape":  # a process that leaves group and session, and its parent
        escaped = "import os; os.fork() and os._exit(0); os.setsid(); import signal; signal.pause()"
        subprocess.Popen([sys.executable, "-c", escaped]).wait()


class Plan:
    """What happens in this life."""

    def __init__(self, path: Path) -> None:
        self._plan = [(kind, step) for kind, step in json.loads(path.read_text())]
        self._done = path.with_suffix(".done")

    def after(self, step: int) -> None:
        """Let happen what is due after a micro-step."""
        done = self._done.read_text().splitlines() if self._done.exists() else []
        for kind, at in self._plan:
            name = f"{kind} {at}"
            if at == step and (kind == "bad-batch" or name not in done):
                with self._done.open("a") as file:
                    print(name, file=file)
                misfortune("exception" if kind == "bad-batch" else kind)


def main() -> None:
    """Train."""
    root, plan = sys.argv[1], Plan(Path(sys.argv[2]))
    run = NumpyRun()
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=10), saving=ck.Saving(when_busy="wait")) as manager:
        manager.restore(run)
        for _ in run.train_until(TOTAL):
            plan.after(run.batches)  # before it is counted: the micro-step is not over
            if (save := manager.step(run)) is not None:
                save.result()
        manager.save_final(run)
    print(run.digest())


if __name__ == "__main__":
    main()
