"""Starts a process of a life in its own session, and ends it with all that it has started; main thread only."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

from ckptkit.tools.doctor.lives.probe import variables

_LOOK_EVERY = timedelta(seconds=0.2)
_KILLS = 25  # rounds, for what a life has in other sessions
_SEEDING = Path(__file__).parent / "seeding"


class Started:
    """Owns the process of one life from its start to its end.

    Args:
        command: The user's command, program first.
        document: File of its plan, which lies there already.
        log: File for its output.
        seed: See `LifePlan`.

    Raises:
        FileNotFoundError, PermissionError: If the program cannot be started.
        OSError: If the log cannot be written.
    """

    def __init__(self, command: Sequence[str], document: Path, log: Path, seed: int | None) -> None:
        self.document = document
        with log.open("wb") as printed:
            self.process = subprocess.Popen(  # noqa: S603 - the command is the user's own
                command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                env=_environment(document, seed),
                start_new_session=True,
            )

    def end(self) -> int:
        """Kill the process and all of its session; return the exit code."""
        # Before the process is reaped: until then its group number cannot be reused.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        _kill_elsewhere(self.document)
        return self.process.wait()


def _kill_elsewhere(document: Path) -> None:
    """Kill what a life has in other sessions, as msrun's workers are: their environment tells that they are of it."""
    for _ in range(_KILLS):  # one that was killed may have started another one before
        killed = list(_killed(os.fsencode(document)))
        if not killed:
            return
        select.select(killed, [], [], _LOOK_EVERY.total_seconds())
        for descriptor in killed:
            os.close(descriptor)


def _killed(mark: bytes) -> Iterator[int]:
    """Kill each process whose environment has ``mark``; yield descriptors that are readable once they have ended."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as closed:  # it has ended, or is another user's
            descriptor = os.pidfd_open(int(entry.name))
            closed.callback(os.close, descriptor)
            if mark in (entry / "environ").read_bytes():  # empty, once it has ended
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                closed.pop_all()
                yield descriptor


def _environment(document: Path, seed: int | None) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    return {
        **({} if seed is None else {"PYTHONHASHSEED": str(seed % 2**32)}),
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_SEEDING), *([inherited] if inherited else [])]),
        **variables(document),
    }
