"""Stores what was found out about lives as events of the run, once the root is known.

Guarantees: a record that cannot be stored now is tried again with the next one; a storage that fails never ends or
delays the job for longer than its own time limit. A life is stored in the run that it trained; in the last one, if it
trained several. Only where rank 0 lives is anything stored. One thread.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from ckptkit.errors import CkptKitError
from ckptkit.format.events import Event, LifeEnded, Stacks, plain_line
from ckptkit.manager.heartbeat.process_start import boot_id
from ckptkit.run.event_log import append_events
from ckptkit.storage import Storage
from ckptkit.tools.supervisor.budget import Decision
from ckptkit.tools.supervisor.diagnosis import signal_of
from ckptkit.tools.supervisor.life import Life
from ckptkit.tools.supervisor.life_phases import earlier_seconds, leader_of, phases_of

_MOST = 1000  # events of a run that wait
_UNKNOWN = ""  # the root of a life before any run is known


class LifeLog:
    """Stores the lives under one supervisor.

    Args:
        token: Of the supervisor: 32 hexadecimal digits.
        open_root: Opens the root of a run.
        say: Tells the user that nothing could be stored.
        boot: Identifies the boot of this host.
    """

    def __init__(
        self,
        token: str,
        open_root: Callable[[str], Storage],
        say: Callable[[str], None],
        *,
        boot: Callable[[], str | None] = boot_id,
    ) -> None:
        self._token = token
        self._open_root = open_root
        self._say = say
        self._boot = boot()
        self._root = _UNKNOWN  # of the last life that had one
        self._attempts: dict[str, int] = {}  # the last one of each root
        self._waiting: dict[str, list[Event]] = {}  # by root
        self._told = False

    def enter(self, life: Life, decision: Decision, down_seconds: float) -> LifeEnded:
        """Store a life, and return what was stored."""
        event = self._event(life, decision, down_seconds)
        leader = leader_of(life.records)
        if leader is not None and leader.rank > 0:
            return event  # the supervisor of rank 0's machine stores its own
        if leader is not None and leader.root and leader.attempt > 0:
            self._root = leader.text("root")
            self._attempts[self._root] = leader.attempt
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
        before = [*self._waiting.pop(_UNKNOWN, ()), *self._waiting.pop(self._root, ())]
        self._waiting[self._root] = [*before, event, *stacks][-_MOST:]
        for root in [one for one in self._waiting if one != _UNKNOWN]:
            self._store(root)
        return event

    def _store(self, root: str) -> None:
        try:
            append_events(self._open_root(root), self._attempts[root], self._waiting[root])
        except (CkptKitError, OSError, ValueError, TypeError) as error:
            if not self._told:
                self._told = True
                self._say(
                    f"could not store this life at {root} for `ckptkit report`; the next one will try again: "
                    f"{error}. If the storage needs options, give them: ckptkit run --option NAME=VALUE"
                )
        else:
            del self._waiting[root]
            self._told = False

    def _event(self, life: Life, decision: Decision, down_seconds: float) -> LifeEnded:
        finding, leader = decision.finding, leader_of(life.records)
        name = finding.signal if finding.signal is not None else signal_of(life.returncode)
        return LifeEnded(
            at=(life.began_at + timedelta(seconds=life.seconds)).isoformat(),
            supervisor=self._token,
            number=life.number,
            attempt=None if leader is None or leader.attempt <= 0 else leader.attempt,
            boot=self._boot,
            uptime_seconds=max(0.0, life.ended),
            began_at=life.began_at.isoformat(),
            seconds=life.seconds,
            earlier_seconds=earlier_seconds(life, leader),
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
            committed_step=None if leader is None else _known(leader.committed_step),
            committed_seconds=0.0 if leader is None else leader.committed_seconds,
            phases=phases_of(life, leader),
        )


def _known(number: int) -> int | None:
    return number if number >= 0 else None
