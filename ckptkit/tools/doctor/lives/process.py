"""Starts a process of a life in its own session, and ends it with all that it has started.

Guarantees: when `Started.end` returns, no process of that life runs any more, unless it has another environment and
another session. A process that waits at the gate exits if the doctor dies. Main thread only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
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
        document: File of its plan, which lies there already if there is no gate.
        log: File for its output.
        seed: See `LifePlan`.
        ahead: What it imports before it waits at the gate; without anything, there is no gate.

    Raises:
        FileNotFoundError, PermissionError: If the program cannot be started.
        OSError: If the log cannot be written.
    """

    def __init__(
        self, command: Sequence[str], document: Path, log: Path, seed: int | None, ahead: Sequence[str] = ()
    ) -> None:
        self.document, self.log = document, log
        self.gate: socket.socket | None = None
        theirs: socket.socket | None = None
        if ahead:
            self.gate, theirs = socket.socketpair()
        passed = () if theirs is None else (theirs.fileno(),)
        try:
            with log.open("wb") as printed:
                self.process = subprocess.Popen(  # noqa: S603 - the command is the user's own
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    env=_environment(document, seed, passed, ahead),
                    pass_fds=passed,
                    start_new_session=True,
                )
        except BaseException:
            self._close()
            raise
        finally:
            if theirs is not None:
                theirs.close()

    def let_go(self) -> None:
        """Open the gate."""
        if self.gate is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self.gate.send(b"!")

    def end(self) -> int:
        """Kill the process and all of its session; return the exit code."""
        # Before the process is reaped: until then its group number cannot be reused.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        _kill_elsewhere(self.document)
        self._close()
        return self.process.wait()

    def _close(self) -> None:
        if self.gate is not None:
            self.gate.close()


def _kill_elsewhere(document: Path) -> None:
    """Kill what a life has in other sessions, as msrun's workers are: their environment tells that they are of it."""
    for _ in range(_KILLS):  # one that was killed may have started another one before
        killed = list(_killed(os.fsencode(document)))
        if not killed:
            return
        select.select(killed, [], [], _LOOK_EVERY.total_seconds())
        for one in killed:
            os.close(one)


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


def start_ahead(command: Sequence[str], name: str, folder: Path, seed: int | None, ahead: Sequence[str]) -> Started:
    """Start a life before its turn; `live` lets it go.

    Raises:
        OSError: As for `Started`.
    """
    document = folder / f"{name}.json"
    document.write_text(json.dumps({"seed": seed}), encoding="utf-8")  # all that is read before the gate
    return Started(command, document, folder / f"{name}.log", seed, ahead)


def _environment(document: Path, seed: int | None, gate: Sequence[int], ahead: Sequence[str]) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    return {
        **({} if seed is None else {"PYTHONHASHSEED": str(seed % 2**32)}),
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_SEEDING), *([inherited] if inherited else [])]),
        **variables(document),
        **({"CKPTKIT_GATE": f"{gate[0]}:{','.join(ahead)}"} if gate else {}),
    }
