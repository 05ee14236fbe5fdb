"""Tells what the seconds of a life went to, from the record of the process that trained.

Guarantees: the seconds of the phases add up to those of the life, without those in which its processes trained before.
After the death of the process, or of one without which it could not go on, nothing counts as training. Nothing of a
hang does, also if the process went on when it was asked to end. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckptkit.manager.heartbeat.record import Phase, Record
from ckptkit.tools.supervisor.life import GOOD_ENDS, Life


def leader_of(records: Sequence[Record]) -> Record | None:
    """Return the record of rank 0, or of the lowest rank on this machine; of several such processes, the last one.

    Only those that have restored a run know their rank, unless a launcher has told it: an unknown one is rank 0.
    """
    return max(_same_rank(records), key=lambda one: (one.attempt > 0, one.opened_at), default=None)


def earlier_seconds(life: Life, leader: Record | None) -> float:
    """Return the seconds of a life before ``leader`` began its attempt, if something else was trained in them."""
    if leader is None or leader.attempt <= 0:
        return 0.0
    has_others = any(one.attempt > 0 and one.opened_at < leader.opened_at for one in _same_rank(life.records))
    if leader.trainings <= 1 and not has_others:
        return 0.0
    return min(life.seconds, max(0.0, leader.born_at - life.began))


def phases_of(life: Life, leader: Record | None) -> dict[str, float]:
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
    lowest = min((max(0, one.rank) for one in records), default=0)
    return [one for one in records if max(0, one.rank) == lowest]


def _end_of(life: Life, leader: Record) -> float:
    """Return when it died, or when another rank did, if it has shown no sign since."""
    died = min(life.ended, life.deaths.get(leader.pid, life.ended))
    others = (one for one in life.records if one.ranks > 1 and one.how not in GOOD_ENDS)
    lost = min((life.deaths[one.pid] for one in others if one.pid in life.deaths), default=died)
    return min(died, lost) if leader.last_sign_at <= lost else died
