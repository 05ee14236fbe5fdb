"""Stores what was found out about lives as events of the run, once the root is known, and adds up their seconds.

Guarantees: the seconds of the phases add up to those of the life, without those in which its processes trained before.
After the death of the process, or of one without which it could not go on, nothing counts as training; nothing of a
hang does, also if the process went on when it was asked to end. An event that cannot be stored now is tried again with
the next one; a storage that fails never ends or delays the job for longer than its own time limit. A life is stored in
the run that it trained; in the last one, if it trained several. Only where rank 0 lives is anything stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from ckptkit.errors import CkptKitError
from ckptkit.format.events import Event, LifeEnded, Stacks, plain_line
from ckptkit.manager.heartbeat import Phase, Record, boot_id
from ckptkit.run.event_log import append_events
from ckptkit.storage import Storage
from ckptkit.tools.supervisor.diagnosis import RestartDecision, signal_of
from ckptkit.tools.supervisor.life import GOOD_ENDS, SupervisedLife

_MOST = 1000  # events of a run that wait
_UNKNOWN = ""  # the root of a life before any run is known


class LifeLog:
    def __init__(self, token: str, open_root: Callable[[str], Storage], say: Callable[[str], None]) -> None:
        self._token = token
        self._open_root = open_root
        self._say = say
        self._boot = boot_id()
        self._root = _UNKNOWN  # of the last life that had one
        self._attempts: dict[str, int] = {}  # the last one of each root
        self._waiting: dict[str, list[Event]] = {}  # by root
        self._is_failure_known = False

    def enter(self, life: SupervisedLife, decision: RestartDecision, down_seconds: float) -> LifeEnded:
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
                number=event.number,
                rank=stack.rank,
                pid=stack.pid,
                lines=list(stack.lines),
            )
            for stack in life.stacks
        ]
        before = [*self._waiting.pop(_UNKNOWN, ()), *self._waiting.pop(self._root, ())]
        self._waiting[self._root] = [*before, event, *stacks][-_MOST:]
        for root in [*self._waiting]:
            if root == _UNKNOWN:
                continue
            try:
                append_events(self._open_root(root), self._attempts[root], self._waiting[root])
            except (CkptKitError, OSError, ValueError, TypeError) as error:
                if not self._is_failure_known:
                    self._is_failure_known = True
                    self._say(
                        f"could not store this life at {root} for `ckptkit report`; the next one will try again: "
                        f"{error}. If the storage needs options, give them: ckptkit run --option NAME=VALUE"
                    )
            else:
                del self._waiting[root]
                self._is_failure_known = False
        return event

    def _event(self, life: SupervisedLife, decision: RestartDecision, down_seconds: float) -> LifeEnded:
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


class Recovery:
    """Adds up the seconds from a death to the next micro-step, also over lives that trained nothing."""

    def __init__(self) -> None:
        self._since_death: dict[str, float] | None = None  # seconds by phase; None before the first death

    def end(self, life: SupervisedLife, event: LifeEnded) -> Mapping[str, float] | None:
        """Take a life that has ended; return the seconds by phase if it got to a micro-step after a death."""
        before, down, first = self._since_death, {"down": event.down_seconds}, to_first_step(life)
        if first is None and before is not None:
            self._since_death = _sum(before, {**event.phases, **down})
            return None
        self._since_death = {"dead": event.phases.get("dead", 0.0)}
        return None if before is None or first is None else _sum(before, {**first, **down})


def to_first_step(life: SupervisedLife) -> dict[str, float] | None:
    """Return the seconds by phase from the start of a life to the end of its first micro-step; None without one."""
    trained = [record for record in _same_rank(life.records) if record.stepped_at]
    first = min(trained, key=lambda record: record.opened_at, default=None)
    if first is None:
        return None
    seconds = {phase.name.lower(): first.to_first_step[phase] for phase in Phase}
    return {**seconds, "starting": seconds["starting"] + max(0.0, first.opened_at - life.began)}


def _sum(seconds: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {phase: seconds.get(phase, 0.0) + more.get(phase, 0.0) for phase in {**seconds, **more}}


def _known(number: int) -> int | None:
    return number if number >= 0 else None


def leader_of(records: Sequence[Record]) -> Record | None:
    """Return the record of rank 0, or of the lowest rank on this machine; of several such processes, the last one.

    Only those that have restored a run know their rank, unless a launcher has told it: an unknown one is rank 0.
    """
    return max(_same_rank(records), key=lambda record: (record.attempt > 0, record.opened_at), default=None)


def earlier_seconds(life: SupervisedLife, leader: Record | None) -> float:
    """Return the seconds of a life before ``leader`` began its attempt, if something else was trained in them."""
    if leader is None or leader.attempt <= 0:
        return 0.0
    has_others = any(record.attempt > 0 and record.opened_at < leader.opened_at for record in _same_rank(life.records))
    if leader.trainings <= 1 and not has_others:
        return 0.0
    return min(life.seconds, max(0.0, leader.born_at - life.began))


def phases_of(life: SupervisedLife, leader: Record | None) -> dict[str, float]:
    """Return the seconds by phase; ``hung`` and ``dead`` are as in `ckptkit.format.events.LifeEnded`."""
    if leader is None:
        return {"starting": life.seconds}
    start, until = life.began + earlier_seconds(life, leader), _end_of(life, leader)
    seconds = {phase: value - leader.before[phase] for phase, value in leader.seconds(until).items()}
    seconds[Phase.STARTING] += until - start - sum(seconds.values())
    phase, hung = life.hang_phases.get(leader.pid), 0.0
    if phase is not None:
        went_on = leader.last_sign_at > life.hang_until
        hung = min(seconds[phase], max(0.0, (life.hang_until if went_on else until) - life.hang_from))
        seconds[phase] -= hung
    named = {phase.name.lower(): max(0.0, value) for phase, value in seconds.items()}
    after = "ended" if leader.how in GOOD_ENDS else "dead"
    return {**named, "hung": hung, after: named.get(after, 0.0) + life.ended - until}


def _same_rank(records: Sequence[Record]) -> list[Record]:
    lowest = min((max(0, record.rank) for record in records), default=0)
    return [record for record in records if max(0, record.rank) == lowest]


def _end_of(life: SupervisedLife, leader: Record) -> float:
    """Return when it died, or when another rank did, if it has shown no sign since."""
    died = min(life.ended, life.deaths.get(leader.pid, life.ended))
    dead = [record for record in life.records if record.pid in life.deaths]
    others = (record for record in dead if record.ranks > 1 and record.how not in GOOD_ENDS)
    lost = min((life.deaths[record.pid] for record in others), default=died)
    return min(died, lost) if leader.last_sign_at <= lost else died
