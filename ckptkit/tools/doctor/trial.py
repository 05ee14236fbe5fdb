"""Runs one life of the user's script, as a process in its own session, and reads its trace.

Guarantees: when `live` returns or raises, no process of that session runs any more. Does not cover a script that moves
its children to sessions of their own. Main thread only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from ckptkit.tools.doctor.probe import Begun, Event, LifePlan, Refused, Saved, Stepped, read_trace, variables

_LOOK_EVERY = timedelta(seconds=0.2)
_SEEDING = Path(__file__).parent / "seeding"


@dataclass(frozen=True)
class Life:
    """Holds what one process left behind.

    Attributes:
        name: For display and file names.
        exit_code: As in `subprocess`; None if it was ended because its time was up.
        events: Events of its trace.
        log: File with all its output.
        planned_kill: The micro-step after which it was to kill itself, or None.
        seeded: Whether it was seeded before its script began.
    """

    name: str
    exit_code: int | None
    events: Sequence[Event]
    log: Path
    planned_kill: int | None = None
    seeded: bool = True
    steps: dict[int, Stepped] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", {one.step: one for one in self.events if isinstance(one, Stepped)})

    @property
    def begun(self) -> Begun | None:
        """Its first restore."""
        return next((one for one in self.events if isinstance(one, Begun)), None)

    @property
    def refused(self) -> str | None:
        """Why the script cannot be rehearsed, or None."""
        return next((one.why for one in self.events if isinstance(one, Refused)), None)

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
        if self.exit_code == -signal.SIGKILL:
            return self.planned_kill is not None and self.last_step >= self.planned_kill
        return self.exit_code == 0

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
    events = read_trace(Path(plan.trace))
    return Life(name, process.returncode if in_time else None, events, log, plan.kill, plan.seed is not None)


def _wait(
    process: subprocess.Popen[bytes],
    trace: Path,
    until: float,
    monotonic: Callable[[], float],
    on_step: Callable[[int], None],
) -> bool:
    """Wait for the end without reaping; return whether it came in time."""
    ended = os.pidfd_open(process.pid)
    try:
        while True:
            left = until - monotonic()
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
