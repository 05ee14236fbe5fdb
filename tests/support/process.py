"""Runs Python programs in processes of their own and says how each one ended.

A process is forked from a server that has imported MindSpore and done nothing else, since an import of MindSpore takes
1.3 s; that of `forked` from one that has imported what commands and trainings without MindSpore do, 0.3 s. It has its
own memory, files, signals and exit code, so a SIGKILL is a real one. Addresses and hashes of texts are those of its
server. Under ``-m full`` every process is a new interpreter. `python` starts a new one always: for what a program
imports, and for options of the interpreter.

A server ends with the process that started it. Any thread may call `run_python`; a server takes one program at a time.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SERVER = Path(__file__).with_name("warm_server.py")
ALWAYS_FRESH = threading.Event()  # once set, every process is a new interpreter
_FORKED: dict[int, float] = {}  # seconds of user time of the programs of each server that has not ended

IMPORTED = (
    "mindspore",
    "mindspore.dataset",
    "mindspore.train",
    "numpy",
    "ckptkit.mindspore",
    "ckptkit.mindspore.state.manager",
)


WITHOUT_MINDSPORE = (
    "numpy",
    "ckptkit.cli.app",
    "ckptkit.cli.commands.ls",
    "ckptkit.testing.state",
    "ckptkit.manager.manager",
)


@dataclass(frozen=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str
    repeat: str
    logs: Path

    def expect(self, returncode: int) -> Ended:
        assert self.returncode == returncode, (
            f"expected exit code {returncode}, got {self.returncode}\n"
            f"{self.stdout[-1000:]}\n{self.stderr[-4000:]}\nlogs: {self.logs}\nrepeat: {self.repeat}"
        )
        return self


def forked_user_seconds() -> float:
    """Return the user time of programs that the system counts as those of a server that runs on."""
    return sum(_FORKED.values())


def run_python(
    *arguments: str, folder: Path, environment: Mapping[str, str] | None = None, timeout: float = 300
) -> Ended:
    """Run ``python ARGUMENTS`` in ``folder`` until it ends, and keep what it writes beside ``folder``."""
    environment = {"GLOG_v": "3", "PYTHONPATH": module_path(), **(environment or {})}
    logs = folder.with_name(f"{folder.name}.logs")
    logs.mkdir(exist_ok=True)
    number = sum(1 for _ in logs.glob("*.stdout"))
    out, err = logs / f"{number}.stdout", logs / f"{number}.stderr"
    request = _request(arguments, str(folder), environment, (out, err), timeout)
    returncode = _in_new_interpreter(request) if ALWAYS_FRESH.is_set() else _server(*IMPORTED).run(request)
    changed = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    repeat = f"cd {shlex.quote(str(folder))} && {changed} {sys.executable} {shlex.join(arguments)}"
    return Ended(returncode, out.read_text(errors="replace"), err.read_text(errors="replace"), repeat, logs)


def module_path() -> str:
    """Return where another interpreter finds the modules of the tests, as PYTHONPATH.

    Without what lies in this environment, which it finds itself: MindSpore puts its own folders in front when it
    rewrites a network, and one of them has a module named ``math``.
    """
    return os.pathsep.join(path for path in sys.path if path and not path.startswith((sys.prefix, sys.base_prefix)))


def python(
    *arguments: object,
    expect: int | None = 0,
    timeout: float = 60,
    environment: Mapping[str, str] | None = None,
    **also: Any,
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` in a new interpreter, which finds the modules that this one finds."""
    streams = {} if also.keys() & {"stdout", "stderr"} else {"capture_output": True}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": module_path(), **(environment or {})},
        text=True,
        timeout=timeout,
        check=False,
        **streams,
        **also,
    )
    assert expect in (None, done.returncode), f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def forked(
    *arguments: object, expect: int | None = 0, timeout: float = 60, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Do as `python` does, in a process forked from one that has imported NumPy and commands, and no MindSpore."""
    if ALWAYS_FRESH.is_set():
        return python(*arguments, expect=expect, timeout=timeout, environment=environment, stdin=subprocess.DEVNULL)
    texts = [*map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "stdout"), Path(folder, "stderr")
        variables = {"PYTHONPATH": module_path(), **(environment or {})}
        code = _server(*WITHOUT_MINDSPORE).run(_request(texts, os.getcwd(), variables, (out, err), timeout))
        done = subprocess.CompletedProcess(texts, code, out.read_text(), err.read_text())
    assert expect in (None, code), f"exit code {code}\n{done.stdout}\n{done.stderr}"
    return done


def _request(
    arguments: Sequence[str], folder: str, environment: Mapping[str, str], streams: tuple[Path, Path], timeout: float
) -> dict[str, Any]:
    out, err = map(str, streams)
    variables = {**os.environ, **environment}
    own = {"arguments": arguments, "folder": folder, "environment": variables, "timeout": timeout}
    return {**own, "out": out, "err": err}


def _in_new_interpreter(request: Mapping[str, Any]) -> int:
    with open(request["out"], "wb") as out, open(request["err"], "wb") as err:
        return subprocess.run(
            [sys.executable, *request["arguments"]],
            cwd=request["folder"],
            env=request["environment"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            timeout=request["timeout"],
            check=False,
        ).returncode


class WarmServer:
    """Forks processes that have imported ``modules``."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, str(_SERVER), *modules],
            env={
                **os.environ,
                "GLOG_v": "3",
                "PYTHONPATH": module_path(),
                **(environment or {}),
            },
            stdin=subprocess.PIPE,  # the server ends when this process does, since nobody holds the other end then
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, request: Mapping[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, "the server of warm processes has died; its stderr says why"
        returncode, user_seconds = json.loads(answer)
        _FORKED[id(self)] = _FORKED.get(id(self), 0) + user_seconds
        if returncode is None:
            raise subprocess.TimeoutExpired(request["arguments"], request["timeout"])
        return int(returncode)

    def close(self) -> None:
        self._process.communicate()
        _FORKED.pop(id(self), None)  # the system counts them from now on, with the server's own


@functools.cache
def _server(*modules: str) -> WarmServer:
    return WarmServer(modules)
