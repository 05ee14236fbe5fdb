from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptkit.core.progress import Progress
from ckptkit.errors import CorruptCheckpointError, FormatVersionError
from ckptkit.format.documents import canonical, digest_of, encode
from ckptkit.format.events import (
    MAX_CURVES,
    MAX_EVENTS,
    MAX_SEGMENT_BYTES,
    Ended,
    Point,
    Removed,
    SaveFailed,
    SegmentHeader,
    Spread,
    decode_segment,
    encode_segment,
    plain_line,
)
from ckptkit.format.layout import attempt_of, parse_segment, segment_key
from ckptkit.manager.recorder import FINE, CurvePlace, Curves

TOKEN = "ab" * 16
KEY = "events/a000002-0001.jsonl"
AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
START = Progress(
    epoch=0,
    batch=0,
    cycles=0,
    updates=0,
    micro_step=0,
    accumulation_steps=4,
    batches_delivered=0,
    cycle_first_batch=0,
)
EVENTS = [
    Removed(at="2026-01-01T00:00:00+00:00", checkpoint="a", after="b"),
    SaveFailed(at="", checkpoint="a", progress=START, error="StorageError", message="磁盘已满"),
    Ended(at="x", how="preempted", progress=START, error="SystemExit", message="143"),
    Point(at="", first=3, last=4, cycles=2, values={"loss": Spread(mean=1.0, low=0.5, high=1.5, not_finite=1)}),
]


def segment() -> bytes:
    data, count = encode_segment(2, TOKEN, 1, EVENTS)
    assert count == len(EVENTS)
    return data


def place(cycle: int, *, ends: bool = True) -> CurvePlace:
    return CurvePlace(cycle, cycle, ends, AT + timedelta(seconds=cycle))


# Segments


def test_a_segment_comes_back_as_it_was_written():
    found = decode_segment(segment(), KEY)
    assert list(found.events) == EVENTS
    assert (found.header.attempt, found.header.number, found.header.token) == (2, 1, TOKEN)


def test_no_altered_byte_goes_unnoticed():
    data = segment()
    for place_of in range(len(data)):
        altered = bytearray(data)
        altered[place_of] ^= 1
        with pytest.raises((CorruptCheckpointError, FormatVersionError), match=r"events/a000002-0001\.jsonl"):
            decode_segment(bytes(altered), KEY)


def test_no_cut_goes_unnoticed():
    data = segment()
    for end in range(len(data)):
        with pytest.raises(CorruptCheckpointError):
            decode_segment(data[:end], KEY)


def hostile(line: bytes, events: int = 1) -> bytes:
    """A segment whose digests are right."""
    header = SegmentHeader(attempt=2, number=1, token=TOKEN, events=events, events_digest=digest_of(line))
    return encode(header.sealed()) + b"\n" + line


@pytest.mark.parametrize(
    "line",
    [
        b"{}\n",
        b"[]\n",
        b'{"at":"","kind":"unknown"}\n',
        b'{"at":"","kind":"removed","checkpoint":"a","after":"b","more":1}\n',
        b'{"at":"","kind":"removed","checkpoint":"a"}\n',
        b'{"at":"","kind":"removed","checkpoint":"' + b"a" * 600 + b'","after":"b"}\n',
        b'{"at":"","kind":"left_out","events":1e300}\n',
        b'{"at":"","kind":"left_out","events":-1}\n',
        b'{"at":"","kind":"point","first":0,"last":0,"cycles":1,"values":{"loss":{"mean":NaN,"low":0,"high":0,"not_finite":0}}}\n',
        b"[" * 100_000 + b"\n",
        b"\xff\xfe\n",
    ],
)
def test_invalid_event_is_refused_despite_right_digests(line):
    with pytest.raises(CorruptCheckpointError, match="line 2") as caught:
        decode_segment(hostile(line), KEY)
    assert len(str(caught.value)) < 700


def test_a_wrong_count_of_events_is_refused():
    line = EVENTS[0].model_dump_json().encode() + b"\n"
    with pytest.raises(CorruptCheckpointError, match="has 1 events, but its first line says 2"):
        decode_segment(hostile(line, events=2), KEY)


def test_a_newer_format_says_so():
    fields = SegmentHeader(attempt=2, number=1, token=TOKEN, events=1, events_digest=digest_of(b"")).sealed()
    newer = {**fields.model_dump(exclude={"digest"}), "format_version": 2}
    line = canonical({**newer, "digest": digest_of(canonical(newer))})
    with pytest.raises(FormatVersionError, match="version 2"):
        decode_segment(line + b"\n", KEY)


def test_segment_is_limited_in_lines_and_bytes():
    """Events beyond the limits are left for the next segment."""
    many = [EVENTS[0]] * (MAX_EVENTS + 7)
    data, count = encode_segment(1, TOKEN, 1, many)
    assert count == MAX_EVENTS
    assert len(data) <= MAX_SEGMENT_BYTES
    for letters in (30, 31, 32, 500):  # the header would find no room behind short ones
        long = SaveFailed(at="", checkpoint="a" * letters, progress=START, error="E", message="é" * letters)
        data, count = encode_segment(1, TOKEN, 1, [long] * MAX_EVENTS)
        assert 0 < count < MAX_EVENTS
        assert MAX_SEGMENT_BYTES // 2 < len(data) <= MAX_SEGMENT_BYTES
        assert len(decode_segment(data, KEY).events) == count
    with pytest.raises(CorruptCheckpointError, match="longer than"):
        decode_segment(data + b" " * MAX_SEGMENT_BYTES, KEY)


# Names


@given(st.integers(1, 999_999), st.integers(1, 999_999))
def test_names_of_segments_come_back(attempt, number):
    key = segment_key(attempt, number)
    assert parse_segment(key.removeprefix("events/")) == (attempt, number)
    assert attempt_of(key) == attempt


@pytest.mark.parametrize(
    "name", ["a000000-0001.jsonl", "a000001-0000.jsonl", "a000001-00001.jsonl", "a000001-1.jsonl", "a000001-0001.json"]
)
def test_other_names_are_none(name):
    assert parse_segment(name) is None
    assert attempt_of(f"events/{name}") is None


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("one\ntwo", "one"),
        ("", ""),
        ("s3 at https://user:secret@host/x failed", "s3 at https://host/x failed"),
        ("a\ud800b", "a\\ud800b"),
        ("x" * 1000, "x" * 512),
    ],
)
def test_a_message_becomes_one_plain_line(text, plain):
    assert plain_line(text) == plain


# Curves


def test_first_cycles_have_one_mean_point_each():
    """Each of the first cycles has one point, which is the mean of its micro-steps."""
    curves = Curves()
    for cycle in range(1, 4):
        for micro in range(4):
            curves.add(place(cycle, ends=micro == 3), {"loss": cycle + micro}, {"norm": cycle} if micro == 3 else {})
    points = curves.take()
    assert [(point.first, point.last, point.cycles) for point in points] == [(1, 1, 1), (2, 2, 1), (3, 3, 1)]
    assert [point.values["loss"].mean for point in points] == [2.5, 3.5, 4.5]
    assert [point.values["norm"].mean for point in points] == [1, 2, 3]
    assert curves.take() == []


def test_long_run_keeps_few_points_without_gaps():
    """A month of training gives a few thousand points that cover every cycle."""
    curves, cycles = Curves(), 50_000
    points = []
    for cycle in range(1, cycles + 1):
        curves.add(place(cycle), {"loss": float(cycle)}, {})
        points += curves.take()
    points += curves.take(all_of_it=True)
    assert FINE * math.log(cycles / FINE) < len(points) < 8 * FINE
    assert sum(point.cycles for point in points) == cycles
    assert points[0].first == 1
    assert points[-1].last == cycles
    for before, after in pairwise(points):
        assert after.first == before.last + 1
    for point in points:
        loss = point.values["loss"]
        assert (loss.low, loss.high) == (point.first, point.last)
        assert loss.mean == pytest.approx((point.first + point.last) / 2)
        assert point.cycles <= 1 + point.last / FINE


def test_every_fine_cycle_has_its_own_point():
    curves = Curves()
    for cycle in range(1, FINE + 2):
        curves.add(place(cycle), {"loss": 1.0}, {})
    assert [(point.first, point.last) for point in curves.take()] == [(cycle, cycle) for cycle in range(1, FINE + 1)]
    (last,) = curves.take(all_of_it=True)
    assert (last.first, last.cycles) == (FINE + 1, 1)


def test_cycle_in_two_parts_counts_once():
    curves = Curves()
    for cycle in (1, 1, 2):
        curves.add(place(cycle), {"loss": float(cycle)}, {})
    assert sum(point.cycles for point in curves.take(all_of_it=True)) == 2


def test_cycle_without_values_has_no_point():
    curves = Curves()
    curves.add(place(1), {}, {})
    assert curves.take(all_of_it=True) == []


def test_half_seen_cycle_has_only_whole_cycle_values():
    """A cycle that began before has no mean of micro-steps, but the values of the whole cycle."""
    curves = Curves(half_seen=7)
    curves.add(place(7), {"loss": 1.0}, {"norm": 2.0})
    curves.add(place(8), {"loss": 3.0}, {"norm": 4.0})
    first, second = curves.take()
    assert first.values.keys() == {"norm"}
    assert second.values.keys() == {"loss", "norm"}


def test_values_that_are_not_finite_are_counted():
    curves = Curves()
    for cycle, value in enumerate((math.nan, math.inf, 1e308), 1):
        curves.add(place(cycle), {"loss": value}, {})
    points = curves.take()
    assert [point.values["loss"].not_finite for point in points] == [1, 1, 0]
    assert [point.values["loss"].mean for point in points] == [None, None, 1e308]


def test_means_without_a_finite_mean_are_counted(monkeypatch):
    """Several cycles that share a point, and whose sum is no float."""
    monkeypatch.setattr("ckptkit.manager.recorder.FINE", 1)
    curves = Curves()
    for cycle, value in enumerate((1.0, 1e308, math.nan, 1e308), 1):
        curves.add(place(cycle), {"loss": value}, {})
    first, rest = curves.take(all_of_it=True)
    assert first.values["loss"] == Spread(mean=1.0, low=1.0, high=1.0, not_finite=0)
    assert (rest.cycles, rest.values["loss"]) == (3, Spread(mean=None, low=None, high=None, not_finite=3))


def test_names_are_bounded_in_number_and_length():
    curves = Curves()
    curves.add(place(1), {f"{number}{'x' * 300}": 1.0 for number in range(100)}, {})
    (point,) = curves.take()
    assert len(point.values) == MAX_CURVES
    assert max(map(len, point.values)) == 128
    data, count = encode_segment(1, TOKEN, 1, [point])
    assert (count, list(decode_segment(data, KEY).events)) == (1, [point])
