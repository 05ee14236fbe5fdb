"""Runs one life of the user's script, as a process in its own session, and reads its trace.

Guarantees: when `live` returns or raises, no process of that session runs any more. In a job of many ranks, a life has
ended once a rank has killed itself as planned, or every rank has stopped: what is left of the session is ended then,
whatever the launcher waits for. Does not cover a script that moves its children to sessions of their own. Main thread
only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from ckptkit.tools.doctor.probe import Begun, Event, Killed, LifePlan, Refused, Saved, Stepped, Stopped, variables
from ckptkit.tools.doctor.rank_traces import have_ended, read_traces

_GRACE = timedelta(seconds=2)  # for the launcher of a job of many ranks, once they have ended
_LOOK_EVERY = timedelta(seconds=0.2)
_SEEDING = Path(__file__).parent / "seeding"


@dataclass(frozen=True)
class Life:
    """Holds what one process left behind, or the ranks of one job.

    Attributes:
        name: For display and file names.
        exit_code: As in `subprocess`; None if it was ended because its time was up.
        events: Events of its trace; in a job of many ranks, of rank 0's.
        log: File with all its output.
        planned_kill: The micro-step after which it was to kill itself, or None.
        seeded: Whether it was seeded before its script began.
        killed_ranks: The ranks of a job of many that were to kill themselves; None for all.
        ranks: In a job of many ranks, each rank's part of the life, by rank.
        rank: Whose part of a life this is; None if it is a whole life.
    """

    name: str
    exit_code: int | None
    events: Sequence[Event]
    log: Path
    planned_kill: int | None = None
    seeded: bool = True
    killed_ranks: tuple[int, ...] | None = None
    ranks: tuple[Life, ...] = ()
    rank: int | None = None
    steps: dict[int, Stepped] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", {one.step: one for one in self.events if isinstance(one, Stepped)})

    @property
    def each_rank(self) -> tuple[Life, ...]:
        """The parts of its ranks; itself in a job of one rank."""
        return self.ranks or (self,)

    @property
    def begun(self) -> Begun | None:
        """Its first restore."""
        return next((one for one in self.events if isinstance(one, Begun)), None)

    @property
    def refused(self) -> str | None:
        """Why the script cannot be rehearsed, or None."""
        events = (event for one in self.each_rank for event in one.events)
        return next((one.why for one in events if isinstance(one, Refused)), None)

    @property
    def saved(self) -> list[Saved]:
        """The saves that it committed as planned."""
        return [one for one in self.events if isinstance(one, Saved)]

    @property
    def last_step(self) -> int:
        """Its last micro-step; 0 if it did none."""
        return max(self.steps, default=0)

    @property
    def ended_as_planned(self) -> bool:
        """Whether it was killed, or finished, where it should have."""
        if self.ranks:
            return self.exit_code is not None and self._ranks_ended_as_planned
        if self.exit_code == -signal.SIGKILL:
            return self.planned_kill is not None and self.last_step >= self.planned_kill
        return self.exit_code == 0

    @property
    def _ranks_ended_as_planned(self) -> bool:
        if self.planned_kill is None:
            return self.exit_code == 0 or all(isinstance(one.events[-1], Stopped) for one in self.ranks if one.events)
        killed = any(isinstance(event, Killed) for one in self.ranks for event in one.events)
        return killed and all(one.last_step >= self.planned_kill for one in self.ranks)

    def last_words(self, lines: int = 15) -> str:
        """Return the end of its output."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def live(
    command: Sequence[str],
    name: str,
    plan: LifePlan,
    *,
    time_limit: timedelta,
    monotonic: Callable[[], float],
    on_step: Callable[[int], None] = lambda step: None,
) -> Life:
    """Run ``command`` under ``plan`` to its end.

    Args:
        command: The user's command, program first.
        name: Name of this life.
        plan: Its trace is in an existing folder, to which the plan and the log are written too.
        time_limit: The process is ended after this time.
        monotonic: Gives seconds.
        on_step: Called now and then with the number of micro-steps done.

    Raises:
        FileNotFoundError, PermissionError: If the program cannot be started.
        OSError: If the folder cannot be written.
    """
    folder = Path(plan.trace).parent
    document, log = folder / f"{name}.json", folder / f"{name}.log"
    document.write_text(plan.model_dump_json(), encoding="utf-8")
    with log.open("wb") as printed:
        process = subprocess.Popen(  # noqa: S603 - the command is the user's own
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=_environment(document, plan.seed),
            start_new_session=True,
        )
    try:
        in_time = _wait(process, Path(plan.trace), monotonic() + time_limit.total_seconds(), monotonic, on_step)
    finally:
        # Before the process is reaped: until then its group number cannot be reused.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    code = process.returncode if in_time else None
    traces = read_traces(Path(plan.trace))
    lives = [
        Life(name, code, events, log, plan.kill, plan.seed is not None, plan.kill_ranks, rank=rank)
        for rank, events in enumerate(traces)
    ]
    if len(lives) == 1:
        return replace(lives[0], rank=None)
    return replace(lives[0], rank=None, ranks=tuple(lives))


def _wait(
    process: subprocess.Popen[bytes],
    trace: Path,
    until: float,
    monotonic: Callable[[], float],
    on_step: Callable[[int], None],
) -> bool:
    """Wait for the end without reaping; return whether it came in time."""
    ended = os.pidfd_open(process.pid)
    all_ended_at: float | None = None  # in a job of many ranks, whose launcher may wait much longer
    try:
        while True:
            left = until - monotonic()
            if all_ended_at is None and have_ended(trace):
                all_ended_at = monotonic()
            if all_ended_at is not None and monotonic() - all_ended_at >= _GRACE.total_seconds():
                return True
            readable, _, _ = select.select([ended], [], [], max(0.0, min(_LOOK_EVERY.total_seconds(), left)))
            if trace.exists():
                on_step(trace.read_bytes().count(b'{"event":"stepped"'))
            if readable or left <= 0:
                return bool(readable)
    finally:
        os.close(ended)


def _environment(document: Path, seed: int | None) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    return {
        **({} if seed is None else {"PYTHONHASHSEED": str(seed % 2**32)}),
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_SEEDING), *([inherited] if inherited else [])]),
        **variables(document),
    }
