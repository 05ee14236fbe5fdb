"""What is written of a life's calls, and read back."""

from __future__ import annotations

from ckptkit.manager.hooks import Recorded
from ckptkit.tools.doctor.lives import record
from ckptkit.tools.doctor.lives.record import Record, read_record

EVENT = Recorded(event="return", depth=2, kind="cell", where="net (Net)", values={"output": "1"}, called=("time.time",))


def test_events_come_back_in_order(tmp_path):
    other = Recorded(event="step", where="1")
    written = Record(tmp_path / "calls")
    written.write(EVENT)
    Record(tmp_path / "calls").write(other)  # another process
    assert list(read_record(tmp_path / "calls")) == [EVENT, other]


def test_full_record_keeps_its_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "MAX_RECORD_BYTES", 500)
    written = Record(tmp_path / "calls")
    for _ in range(20):
        written.write(EVENT)
    assert 0 < (tmp_path / "calls").stat().st_size <= 500
    assert set(map(repr, read_record(tmp_path / "calls"))) == {repr(EVENT)}


def test_incomplete_line_is_left_out(tmp_path):
    Record(tmp_path / "calls").write(EVENT)
    with (tmp_path / "calls").open("ab") as file:
        file.write(b'{"event":"st')
    assert list(read_record(tmp_path / "calls")) == [EVENT]
    assert list(read_record(tmp_path / "missing")) == []
