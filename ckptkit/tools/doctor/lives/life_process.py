"""Runs one life of the user's script, as a process in its own session, and reads its trace.

Guarantees: when `live` returns or raises, no process of that life runs any more. A life has ended once a rank has
killed itself as planned or was not restored, or every rank has stopped: what is left of it is ended soon after that,
whatever a launcher waits for. Main thread only.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from ckptkit.tools.doctor.lives.recording import variables
from ckptkit.tools.doctor.lives.trace import (
    Begun,
    Event,
    KilledEvent,
    LifePlan,
    Refused,
    SavedEvent,
    Stepped,
    StoppedEvent,
    Unrestored,
    have_ended,
    line_of,
    read_traces,
)
from ckptkit.tools.supervisor.processes import become_reaper, descendants, end_all, reap

_GRACE = timedelta(seconds=2)  # for a launcher, once its ranks have ended
_LOOK_EVERY = timedelta(seconds=0.2)
_SEEDING = Path(__file__).parent / "seeding"


@dataclass(frozen=True)
class TrialLife:
    """Holds what one process left behind, or the ranks of one job."""

    name: str  # for display and file names
    exit_code: int | None  # as in `subprocess`; None if it was ended because its time was up
    events: Sequence[Event]  # events of its trace; in a job of many ranks, of rank 0's
    log: Path  # file with all its output
    planned_kill: int | None = None  # the micro-step after which it was to kill itself, or None
    seeded: bool = True  # whether it was seeded before its script began
    began_at: float = 0.0  # when it was started, in seconds of `time.monotonic`
    seconds: float = 0.0  # how long it took from then on
    own_saves: bool = False  # whether the script's own schedule saved
    killed_ranks: tuple[int, ...] | None = None  # the ranks of a job of many that were to kill themselves; None for all
    ranks: tuple[TrialLife, ...] = ()  # in a job of many ranks, each rank's part of the life, by rank
    rank: int | None = None  # whose part of a life this is; None if it is a whole life
    steps: dict[int, Stepped] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", {event.step: event for event in self.events if isinstance(event, Stepped)})

    @property
    def each_rank(self) -> tuple[TrialLife, ...]:
        """The parts of its ranks; itself in a job of one rank."""
        return self.ranks or (self,)

    @property
    def begun(self) -> Begun | None:
        """The first restore of the run that is followed."""
        restores = [event for event in self.events if isinstance(event, Begun)]
        followed = next((step.url for step in self.steps.values()), None)
        return next((restore for restore in restores if restore.url == followed), next(iter(restores), None))

    @property
    def others(self) -> list[str]:
        """The run roots that it restored and did not follow."""
        urls = dict.fromkeys(event.url for event in self.events if isinstance(event, Begun))
        return [url for url in urls if self.begun is not None and url != self.begun.url]

    @property
    def is_from_mirror(self) -> bool:
        """Whether it resumed from a mirror of the run, whose root was removed before."""
        begun = self.each_rank[0].begun
        return self.own_saves and begun is not None and bool(begun.mirrors) and begun.checkpoint is not None

    @property
    def refused(self) -> str | None:
        """Why the script cannot be rehearsed, or None."""
        return next((event.why for event in self._events_of_ranks if isinstance(event, Refused)), None)

    @property
    def unrestored(self) -> str | None:
        """Why no checkpoint was restored, or None."""
        return next((event.why for event in self._events_of_ranks if isinstance(event, Unrestored)), None)

    @property
    def saved(self) -> list[SavedEvent]:
        """The saves that it committed as planned."""
        return [event for event in self.events if isinstance(event, SavedEvent)]

    @property
    def last_step(self) -> int:
        """Its last micro-step; 0 if it did none."""
        return max(self.steps, default=0)

    @property
    def ended_by_itself(self) -> bool:
        """Whether it trained to the end of its run, and was neither stopped nor killed there."""
        return self.exit_code == 0 and not any(
            isinstance(event, StoppedEvent | KilledEvent) for event in self._events_of_ranks
        )

    @property
    def _events_of_ranks(self) -> Iterator[Event]:
        return (event for rank in self.each_rank for event in rank.events)

    @property
    def ended_as_planned(self) -> bool:
        """Whether it was killed, or finished, where it should have."""
        if self.ranks:
            return self.exit_code is not None and self._ranks_ended_as_planned
        last = self.events[-1] if self.events else None
        if self.planned_kill is None:
            return self.exit_code == 0 or (self.exit_code is not None and isinstance(last, StoppedEvent))
        if isinstance(last, KilledEvent) or (self.exit_code == -signal.SIGKILL and not isinstance(last, StoppedEvent)):
            return self.exit_code is not None and self.last_step >= self.planned_kill
        return self.exit_code == 0

    @property
    def failed_in_training(self) -> bool:
        """Whether it continued from a checkpoint, trained, and then ended with an error of its own."""
        begun = self.begun.step if self.begun is not None and not self.ranks else 0
        return 0 < begun < self.last_step and (self.exit_code or 0) > 0

    @property
    def _ranks_ended_as_planned(self) -> bool:
        if self.planned_kill is None:
            return self.exit_code == 0 or all(
                isinstance(rank.events[-1], StoppedEvent) for rank in self.ranks if rank.events
            )
        killed = any(isinstance(event, KilledEvent) for event in self._events_of_ranks)
        return killed and all(rank.last_step >= self.planned_kill for rank in self.ranks)

    def last_words(self, lines: int = 15) -> str:
        """Return the end of its output, and of the error of a process whose launcher put it elsewhere."""
        printed = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
        errors = self.log.with_suffix(".errors")
        error = errors.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:] if errors.exists() else []
        return "\n".join(printed + (error if error and error[-1] not in printed else []))


def live(
    command: Sequence[str],
    name: str,
    plan: LifePlan,
    *,
    time_limit: timedelta,
    monotonic: Callable[[], float],
    on_step: Callable[[int], None] = lambda step: None,
) -> TrialLife:
    """Run ``command`` under ``plan`` to its end, which comes at the latest after ``time_limit``.

    The plan's trace is in an existing folder, to which the plan and the log are written too; ``on_step`` is called now
    and then with the number of micro-steps done. Raises FileNotFoundError or PermissionError if the program cannot be
    started, and OSError if the folder cannot be written.
    """
    folder, began = Path(plan.trace).parent, monotonic()
    document = folder / f"{name}.json"
    document.write_bytes(line_of(plan))
    become_reaper()
    spared = descendants(os.getpid())
    process = _started(command, document, folder / f"{name}.log", plan.seed)
    try:
        in_time = _wait(process.pid, Path(plan.trace), began + time_limit.total_seconds(), monotonic, on_step)
    finally:
        exit_code = _ended(process, spared, monotonic)
    lives = [
        TrialLife(
            name,
            exit_code if in_time else None,
            events,
            folder / f"{name}.log",
            _kill(plan, events),
            plan.seed is not None,
            began_at=began,
            seconds=monotonic() - began,
            own_saves=plan.own_saves,
            killed_ranks=plan.kill_ranks,
            rank=rank,
        )
        for rank, events in enumerate(read_traces(Path(plan.trace)))
    ]
    return replace(lives[0], rank=None, ranks=tuple(lives) if len(lives) > 1 else ())


def _kill(plan: LifePlan, events: Sequence[Event]) -> int | None:
    """Return the micro-step after which the process killed itself as planned; None if it was not to."""
    if not plan.kill_when_saved or not isinstance(events[-1] if events else None, SavedEvent | KilledEvent):
        return plan.kill
    return max(event.step for event in events if isinstance(event, Stepped))


def _wait(pid: int, trace: Path, until: float, monotonic: Callable[[], float], on_step: Callable[[int], None]) -> bool:
    """Wait for the end without reaping; return whether it came in time."""
    ended = os.pidfd_open(pid)
    all_ended_at: float | None = None  # a launcher may wait much longer
    try:
        while True:
            left = until - monotonic()
            if not have_ended(trace):
                all_ended_at = None  # a script may go on after a restore that was refused
            elif all_ended_at is None:
                all_ended_at = monotonic()
            if all_ended_at is not None and monotonic() - all_ended_at >= _GRACE.total_seconds():
                return True
            readable, _, _ = select.select([ended], [], [], max(0.0, min(_LOOK_EVERY.total_seconds(), left)))
            if trace.exists():
                # Whole lines: that of a run that begins later holds such an event, too.
                on_step(trace.read_bytes().count(b'\n{"event":"stepped"'))
            if ended in readable or left <= 0:
                return ended in readable
    finally:
        os.close(ended)


def _started(command: Sequence[str], document: Path, log: Path, seed: int | None) -> subprocess.Popen[bytes]:
    inherited = os.environ.get("PYTHONPATH")
    environment = {
        **({} if seed is None else {"PYTHONHASHSEED": str(seed % 2**32)}),
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_SEEDING), *([inherited] if inherited else [])]),
        **variables(document),
    }
    with log.open("wb") as printed:
        return subprocess.Popen(  # noqa: S603 - the command is the user's own
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _ended(process: subprocess.Popen[bytes], spared: Collection[int], monotonic: Callable[[], float]) -> int:
    """Kill what is left of a life, also in other sessions, as msrun's workers are; return the exit code."""

    def wait(timeout: timedelta) -> bool:
        select.select([], [], [], timeout.total_seconds())
        return False

    end_all(timedelta(0), monotonic=monotonic, wait=wait, keep=process.pid, spared=spared)
    exit_code = process.wait()
    reap()
    return exit_code
