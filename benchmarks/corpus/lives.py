"""Trains a job without interruption, and again with a kill and a resume, and compares the two.

One life serves twice: after micro-step 17, once its saves are on the disk, its folder is copied, and it goes on to the
end. A kill leaves what lies on the disk at that moment, and the copy is of just that: what the process holds in buffers
and what it does at its exit is not in it. Three things differ from a real kill, for which ``--kill`` asks: what other
threads and processes write meanwhile may be copied half, hard links become files of their own, and what the script
draws without a seed before the kill is the same in both.

Lives are forked from two servers that have imported MindSpore: first lives from one, resumed lives from the other, with
other addresses of objects and hashes of texts, as a restart has them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.corpus.job import Job
from tests.support.process import WarmServer

LIFE = Path(__file__).with_name("life.py")
LIMIT = 120  # seconds for a life


def is_name(message: str) -> bool:
    """Return whether a warning names state."""
    return "bit-exact" in message or "may keep state" in message


class BrokenError(Exception):
    """A life ended as none may."""


@dataclass(frozen=True)
class Life:
    """One start of a job: how it ended, the digests of its parameters by micro-step, what ckptkit logged."""

    returncode: int
    error: str = ""
    steps: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)

    def is_refused(self) -> bool:
        """Return whether ckptkit ended it; raises `BrokenError` if something else did."""
        if self.returncode and "ckptkit.errors." not in self.error:
            raise BrokenError(f"exit code {self.returncode}: {self.error[-1500:]}")
        return self.returncode != 0


@dataclass(frozen=True)
class Result:
    """What became of a job: exact, differs, refused or broken; what differs or is broken; its lives by their names."""

    job: Job
    outcome: str
    about: str
    lives: dict[str, Life]

    @property
    def names(self) -> list[str]:
        """Warnings that name state; those of a killed life are those of the whole one."""
        log = [line for name, life in self.lives.items() if name != "killed" for line in life.log]
        return [line["message"] for line in log if line["level"] != "INFO" and is_name(line["message"])]

    @property
    def category(self) -> str:
        """The column that counts it."""
        if self.outcome == "differs":
            return "named" if self.names else "silent"
        return "needless" if self.outcome == "exact" and self.names else self.outcome

    def as_json(self) -> dict[str, Any]:
        """Return all but the digests and the script."""
        job = {"name": self.job.name, "truth": self.job.truth, "class": self.job.place}
        lives = {name: {"returncode": life.returncode, "log": life.log} for name, life in self.lives.items()}
        return {**job, "category": self.category, "outcome": self.outcome, "about": self.about, "lives": lives}


class Lives:
    """Starts jobs with the ckptkit of the folder ``package``, and kills them or copies their folders.

    MindSpore's own checkpoints (`ms_checkpoint`) refuse nothing: a job that they cannot resume counts as refused.
    """

    def __init__(self, package: Path, is_killed: bool, system: str = "ckptkit") -> None:
        path = os.pathsep.join(map(str, (package, LIFE.parent)))
        self._servers = [WarmServer(["life"], {"PYTHONPATH": path, "PYTHONHASHSEED": seed}) for seed in "12"]
        self._package, self._is_killed, self._system = package, is_killed, system

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def result_of(self, job: Job) -> Result:
        """Return what becomes of a job."""
        lives: dict[str, Life] = {}
        with tempfile.TemporaryDirectory(prefix="corpus-", ignore_cleanup_errors=True) as folder:
            try:
                outcome, about = self._outcome(job, Path(folder), lives)
            except BrokenError as error:
                outcome, about = "broken", str(error)
        return Result(job, outcome, about, lives)

    def _outcome(self, job: Job, folder: Path, lives: dict[str, Life]) -> tuple[str, str]:
        script, work, copy = folder / f"{job.name}.py", folder / "life", folder / "copy"
        script.write_text(job.source, encoding="utf-8")
        first, later = self._servers
        stop = () if self._is_killed else ("--copy", str(work), str(copy))
        whole = lives["whole"] = self._live(first, script, work, "whole", stop)
        if whole.is_refused():
            return "refused", whole.error[-500:]
        work.rename(folder / "whole")
        if self._is_killed:
            killed = lives["killed"] = self._live(first, script, work, "killed", ("--kill",))
            if killed.returncode != -signal.SIGKILL:
                raise BrokenError(f"not killed: {killed.error[-1500:]}")
        elif not copy.exists():
            raise BrokenError("it ended before the micro-step of the kill")
        else:
            copy.rename(work)  # where it was, since scripts and ckptkit know their paths
        resumed = lives["resumed"] = self._live(later, script, work, "resumed", ())
        is_refused = resumed.returncode != 0 if self._system != "ckptkit" else resumed.is_refused()
        return ("refused", resumed.error[-500:]) if is_refused else compared(whole, resumed)

    def _live(self, server: WarmServer, script: Path, folder: Path, name: str, stop: tuple[str, ...]) -> Life:
        work, trace, err = folder / name, script.with_name(f"{name}.trace"), script.with_name(f"{name}.err")
        work.mkdir(parents=True)
        trace.touch()
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
        own = {"GLOG_v": "3", "PYTHONPATH": str(self._package), "ROOT": str(folder / "run")}
        request = {
            "arguments": [str(LIFE), str(script), str(trace), self._system, *stop],
            "environment": {**inherited, **own},
        }
        files = {"folder": str(work), "out": os.devnull, "err": str(err)}
        try:
            returncode = server.run({**request, **files, "timeout": LIMIT, "session": True})
        except subprocess.TimeoutExpired:
            raise BrokenError(f"no end after {LIMIT} s: {err.read_text(errors='replace')[-1500:]}") from None
        steps, log = {}, []
        for line in map(json.loads, trace.read_text().splitlines()):
            if "step" in line:
                steps[line["step"]] = line["parameters"]
            else:
                log.append({**line, "after": next(reversed(steps), 0)})
        return Life(returncode, err.read_text(errors="replace"), steps, log)


def compared(whole: Life, resumed: Life) -> tuple[str, str]:
    """Return whether a resumed life is exact, and where it differs first."""
    if not resumed.steps:
        raise BrokenError("the resumed life trained nothing")
    for number, parameters in resumed.steps.items():
        expected = whole.steps.get(number, {})
        if expected != parameters:
            names = [name for name in parameters if expected.get(name) != parameters[name]]
            return "differs", f"micro-step {number}: {', '.join(names[:4])}"
    ends = max(resumed.steps), max(whole.steps)
    return ("exact", "") if ends[0] == ends[1] else ("differs", f"ends at micro-step {ends[0]}, not {ends[1]}")
