"""Records of training processes as a supervisor reads them, and lives that ended with them."""

from datetime import datetime, timezone
from typing import Any

from ckptkit.manager.heartbeat import SIZE_BYTES, Phase, Record, new_record
from ckptkit.tools.supervisor.life import SupervisedLife


def record_of(phase: Phase = Phase.TRAINING, *, entered_at: float = 0.0, **fields: Any) -> Record:
    """A record with the given fields; texts are given as str."""
    record = new_record(bytearray(SIZE_BYTES))
    record.rank, record.ranks, record.pid = 0, 1, 100
    record.phase_number, record.offsets[phase] = phase, -entered_at
    for name, value in fields.items():
        if isinstance(value, str):
            record.put(name, value)
        else:
            setattr(record, name, value)
    return record


def life_of(*records: Record, number: int = 1, **fields: Any) -> SupervisedLife:
    life = SupervisedLife(number, datetime(2026, 1, 1, tzinfo=timezone.utc), began=0.0, ended=100.0)
    life.records = records
    for name, value in fields.items():
        setattr(life, name, value)
    return life
