import math
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest
from support.refusals import unrefused

from ckptkit.core.progress import Progress
from ckptkit.errors import CorruptCheckpointError, FormatVersionError
from ckptkit.format.documents import digest_of, encode
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
from ckptkit.manager.recorder import FINE, CurvePlace, Curves

TOKEN = "ab" * 16
KEY = "events/a000002-0001.jsonl"
AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
START = Progress(
    **dict.fromkeys(("epoch", "batch", "cycles", "updates", "micro_step", "batches_delivered", "cycle_first_batch"), 0),
    accumulation_steps=4,
)
EVENTS = [
    Removed(at="2026-01-01T00:00:00+00:00", checkpoint="a", after="b"),
    SaveFailed(at="", checkpoint="a", progress=START, error="StorageError", message="磁盘已满"),
    Ended(at="x", how="preempted", progress=START, error="SystemExit", message="143"),
    Point(at="", first=3, last=4, cycles=2, values={"loss": Spread(mean=1.0, low=0.5, high=1.5, not_finite=1)}),
]


def place(cycle: int, *, ends: bool = True) -> CurvePlace:
    return CurvePlace(cycle, cycle, ends, AT + timedelta(seconds=cycle))


def test_no_altered_byte_and_no_cut_goes_unnoticed():
    data, count = encode_segment(2, TOKEN, 1, EVENTS)
    read = decode_segment(data, KEY)
    assert (count, list(read.events)) == (len(EVENTS), EVENTS)
    assert (read.header.attempt, read.header.number, read.header.token) == (2, 1, TOKEN)
    altered = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    refused = (CorruptCheckpointError, FormatVersionError)
    rows = [(other, r"events/a000002-0001\.jsonl") for other in (*altered, *(data[:end] for end in range(len(data))))]
    assert unrefused(refused, lambda data: decode_segment(data, KEY), rows) == {}


def hostile(line: bytes, events: int = 1) -> bytes:
    header = SegmentHeader(attempt=2, number=1, token=TOKEN, events=events, events_digest=digest_of(line))
    return encode(header.sealed()) + b"\n" + line


def test_invalid_event_is_refused_despite_right_digests():
    spread = b'{"mean":NaN,"low":0,"high":0,"not_finite":0}'
    lines = [
        *(b"{}", b"[]", b"[" * 100_000, b"\xff\xfe"),
        b'{"at":"","kind":"unknown"}',
        b'{"at":"","kind":"removed","checkpoint":"a","after":"b","more":1}',
        b'{"at":"","kind":"removed","checkpoint":"a"}',
        b'{"at":"","kind":"removed","checkpoint":"' + b"a" * 600 + b'","after":"b"}',
        b'{"at":"","kind":"left_out","events":1e300}',
        b'{"at":"","kind":"left_out","events":-1}',
        b'{"at":"","kind":"point","first":0,"last":0,"cycles":1,"values":{"loss":' + spread + b"}}",
    ]
    rows = [(hostile(line + b"\n"), "line 2") for line in lines]
    rows.append((hostile(EVENTS[0].model_dump_json().encode() + b"\n", events=2), "has 1 events, but its first .* 2"))
    assert unrefused(CorruptCheckpointError, lambda data: decode_segment(data, KEY), rows, most=700) == {}


def test_segment_is_limited_in_lines_bytes_and_names():
    data, count = encode_segment(1, TOKEN, 1, [EVENTS[0]] * (MAX_EVENTS + 7))
    assert count == MAX_EVENTS
    for letters in (30, 31, 32, 500):  # the header would find no room behind short ones
        long = SaveFailed(at="", checkpoint="a" * letters, progress=START, error="E", message="é" * letters)
        data, count = encode_segment(1, TOKEN, 1, [long] * MAX_EVENTS)
        assert MAX_SEGMENT_BYTES // 2 < len(data) <= MAX_SEGMENT_BYTES
        assert len(decode_segment(data, KEY).events) == count < MAX_EVENTS
    with pytest.raises(CorruptCheckpointError, match="longer than"):
        decode_segment(data + b" " * MAX_SEGMENT_BYTES, KEY)
    (point,) = values_of((1, {f"{number}{'x' * 300}": 1.0 for number in range(100)}, {}))
    assert (len(point.values), max(map(len, point.values))) == (MAX_CURVES, 128)
    data, count = encode_segment(1, TOKEN, 1, [point])
    assert (count, list(decode_segment(data, KEY).events)) == (1, [point])


def test_a_message_becomes_one_plain_line():
    lines = {
        "one\ntwo": "one",
        "": "",
        "s3 at https://user:secret@host/x failed": "s3 at https://host/x failed",
        "a\ud800b": "a\\ud800b",
        "x" * 1000: "x" * 512,
    }
    assert {text: plain_line(text) for text in lines} == lines


def values_of(*cycles, **options):
    curves = Curves(**options)
    for cycle, micro, whole in cycles:
        curves.add(place(cycle), micro, whole)
    return curves.take(all_of_it=True)


def test_long_run_keeps_few_points_without_gaps():
    """A month of training gives a few thousand points that cover every cycle; the first have one each, at once."""
    curves, cycles, points = Curves(), 50_000, []
    for cycle in range(1, cycles + 1):
        for micro in range(2):
            norms = {"norm": float(cycle)} if micro else {}
            curves.add(place(cycle, ends=bool(micro)), {"loss": float(cycle) + micro - 0.5}, norms)
        points += curves.take()
        assert len(points) == cycle or cycle > FINE
    points += curves.take(all_of_it=True)
    assert FINE * math.log(cycles / FINE) < len(points) < 8 * FINE
    assert (points[0].first, points[-1].last, sum(point.cycles for point in points)) == (1, cycles, cycles)
    assert all(after.first == before.last + 1 for before, after in pairwise(points))
    for point in points:
        loss = point.values["loss"]
        assert (loss.low, loss.high) == (point.first, point.last)
        assert loss.mean == point.values["norm"].mean == pytest.approx((point.first + point.last) / 2)
        assert point.cycles <= 1 + point.last / FINE
    assert all((points[at].first, points[at].cycles) == (at + 1, 1) for at in range(FINE))


def test_values_that_are_not_finite_are_counted(monkeypatch):
    """Also those of several cycles that share a point, and whose sum is no float."""
    points = values_of(*((n, {"loss": value}, {}) for n, value in enumerate((math.nan, math.inf, 1e308), 1)))
    assert [(point.values["loss"].mean, point.values["loss"].not_finite) for point in points] == [
        *((None, 1), (None, 1), (1e308, 0))
    ]
    monkeypatch.setattr("ckptkit.manager.recorder.FINE", 1)
    first, rest = values_of(*((n, {"loss": value}, {}) for n, value in enumerate((1.0, 1e308, math.nan, 1e308), 1)))
    assert first.values["loss"] == Spread(mean=1.0, low=1.0, high=1.0, not_finite=0)
    assert (rest.cycles, rest.values["loss"]) == (3, Spread(mean=None, low=None, high=None, not_finite=3))
