"""Stores what was found out about lives as events of the run, once the root is known.

Guarantees: a record that cannot be stored now is tried again with the next one; a storage that fails never ends or
delays the job for longer than its own time limit. Only where rank 0 lives is anything stored. One thread.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from ckptkit.errors import CkptKitError
from ckptkit.format.events import Event, LifeEnded, Stacks, plain_line
from ckptkit.manager.heartbeat.record import Phase, Record
from ckptkit.run.event_log import append_events
from ckptkit.storage import Storage
from ckptkit.tools.supervisor.budget import Decision
from ckptkit.tools.supervisor.diagnosis import signal_of
from ckptkit.tools.supervisor.life import Life

_MOST = 1000  # events that wait


class LifeLog:
    """Stores the lives under one supervisor.

    Args:
        token: Of the supervisor: 32 hexadecimal digits.
        open_root: Opens the root of a run.
        say: Tells the user that nothing could be stored.
    """

    def __init__(self, token: str, open_root: Callable[[str], Storage], say: Callable[[str], None]) -> None:
        self._token = token
        self._open_root = open_root
        self._say = say
        self._root = ""
        self._attempt = 0
        self._waiting: list[Event] = []
        self._told = False

    def enter(self, life: Life, decision: Decision, down_seconds: float) -> LifeEnded:
        """Store a life, and return what was stored."""
        event = self._event(life, decision, down_seconds)
        leader = next((one for one in life.records if one.rank == 0), None)
        if life.records and leader is None:
            return event  # the supervisor of rank 0's machine stores its own
        stacks = [
            Stacks(
                at=event.at,
                supervisor=self._token,
                number=life.number,
                rank=one.rank,
                pid=one.pid,
                lines=list(one.lines),
            )
            for one in life.stacks
        ]
        self._waiting = [*self._waiting, event, *stacks][-_MOST:]
        if leader is not None and leader.root and leader.attempt > 0:
            self._root, self._attempt = leader.text("root"), leader.attempt
        if self._root:
            self._store()
        return event

    def _store(self) -> None:
        try:
            append_events(self._open_root(self._root), self._attempt, self._waiting)
        except (CkptKitError, OSError, ValueError, TypeError) as error:
            if not self._told:
                self._told = True
                self._say(
                    f"could not store this life at {self._root} for `ckptkit report`; the next one will try again: "
                    f"{error}. If the storage needs options, give them: ckptkit run --option NAME=VALUE"
                )
        else:
            self._waiting, self._told = [], False

    def _event(self, life: Life, decision: Decision, down_seconds: float) -> LifeEnded:
        finding, leader = decision.finding, next(iter(life.records), None)
        name = finding.signal if finding.signal is not None else signal_of(life.returncode)
        silent = 0.0 if leader is None else min(life.seconds, max(0.0, life.ended - leader.last_sign_at))
        committed = max((one.committed_step for one in life.records), default=-1)
        return LifeEnded(
            at=(life.began_at + timedelta(seconds=life.seconds)).isoformat(),
            supervisor=self._token,
            number=life.number,
            began_at=life.began_at.isoformat(),
            seconds=life.seconds,
            down_seconds=down_seconds,
            exit_code=life.returncode if life.returncode >= 0 else None,
            signal=name,
            cause=finding.cause,
            message=plain_line(finding.why),
            then="restart" if decision.exit_code is None else "stop",
            rank=finding.rank,
            ranks=None if leader is None or leader.ranks < 0 else leader.ranks,
            restored=plain_line(leader.text("checkpoint")) or None if leader is not None else None,
            restored_step=None if leader is None else _known(leader.restored_step),
            last_step=None if leader is None else _known(leader.micro_step),
            committed_step=_known(committed),
            committed_seconds=0.0 if leader is None else leader.committed_seconds,
            phases={} if leader is None else _phases(life, leader),
            silent_seconds=silent,
            silent_phase=None if leader is None else leader.phase.name.lower(),
        )


def _known(number: int) -> int | None:
    return number if number >= 0 else None


def _phases(life: Life, leader: Record) -> dict[str, float]:
    """Return the seconds of the phases, which add up to those of the life."""
    seconds = leader.seconds(life.ended)
    seconds[Phase.STARTING] += max(0.0, leader.opened_at - life.began)
    return {phase.name.lower(): value for phase, value in seconds.items()}
