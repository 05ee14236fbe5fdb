"""What is said in one line: by an error, also one of a pipeline, by a document of a time, and by a long wait."""

import logging
import re
from datetime import timedelta
from types import SimpleNamespace

import mindspore.dataset as ds
import pytest
from support.clock import Clock

from ckptkit.core.text import is_about_data, message_of, time_in
from ckptkit.core.waiting import LongWait, countdown

RULE = "-" * 66


def pipeline_error(**sections):
    parts = [f"\n{RULE}\n- {name.replace('_', ' ')}: \n{RULE}\n{text}\n" for name, text in sections.items()]
    return RuntimeError("Exception thrown from dataset pipeline. Refer to the sections. \n" + "".join(parts))


def test_message_names_what_went_wrong():
    stack = (
        "map operation: [PyFunc] failed. The corresponding data file is: /a b/7.jpg. Error description:\n"
        "ValueError: Traceback:\n  File\nValueError: bad label"
    )
    rows = [
        (ValueError("one\ntwo"), "one\ntwo", False),
        (ValueError(), "", False),
        (ValueError("----------\n- not a section"), "----------\n- not a section", False),
        (pipeline_error(Dataset_Pipeline_Error_Message="[ERROR] Invalid image, a.jpg"), "Invalid image, a.jpg", True),
        (pipeline_error(Dataset_Pipeline_Error_Message="[ERROR] worker was killed."), "worker was killed.", False),
        (
            pipeline_error(Python_Call_Stack=stack, Dataset_Pipeline_Error_Message="[ERROR] User code failed."),
            "ValueError: bad label (The corresponding data file is: /a b/7.jpg)",
            True,
        ),
        (
            pipeline_error(Python_Call_Stack="Traceback:\n  File\nKeyError: 3", Dataset_Pipeline_Error_Message="x"),
            "KeyError: 3",
            True,
        ),
    ]
    for error, message, about_data in rows:
        assert (message_of(error), is_about_data(error)) == (message, about_data)


def test_bad_file_is_named(tmp_path):
    def refuses(image):
        raise ValueError(f"{len(image)} bytes are no picture")

    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.jpg").write_bytes(b"no picture")
    folder = ds.ImageFolderDataset(str(tmp_path), shuffle=False)
    decoded = ds.ImageFolderDataset(str(tmp_path), shuffle=False, decode=True)
    for dataset, words in [(decoded, "/1.jpg"), (folder.map(refuses, "image"), r"^ValueError: 10 bytes .*/1\.jpg\)$")]:
        with pytest.raises(RuntimeError) as raised:
            next(dataset.create_tuple_iterator(num_epochs=1))
        assert re.search(words, message_of(raised.value))


def test_every_python_reads_the_same_times():
    times = {
        "2030-01-01T12:00:00Z": "2030-01-01T12:00:00+00:00",
        "2030-01-01T12:00:00": "2030-01-01T12:00:00+00:00",
        "2030-01-01T12:00:00.5+00:00": "2030-01-01T12:00:00.500000+00:00",
        "2030-01-01T12:00:00,123456789Z": "2030-01-01T12:00:00.123456+00:00",
        "2030-01-01T12:00:00.250000-03:30": "2030-01-01T12:00:00.250000-03:30",
    }
    assert {text: time_in(text).isoformat() for text in times} == times
    assert [time_in(text) for text in ("", "yesterday", "12:00:00.5", "2030-01-01T12:00:00.")] == [None] * 4


def test_a_wait_logs_every_half_minute(caplog):
    """After a standstill no line is made up for."""
    caplog.set_level(logging.INFO, "ckptkit")
    clock = Clock(lambda: 0.0)
    wait = LongWait("restoring it", 100 << 20, monotonic=clock)
    for seconds, mib in [(29.0, 1), (2.0, 9), (10.0, 1), (25.0, 9), (100.0, 1), (1.0, 1)]:
        clock.wait(seconds)
        wait.advance(mib << 20)
    said = [(10, "0:00:31"), (20, "0:01:06"), (21, "0:02:46")]
    assert caplog.messages == [f"restoring it: {mib} of 100 MiB after {spent}" for mib, spent in said]


def test_countdown_ends_at_zero(monkeypatch):
    """Who waits until nothing is left would miss it otherwise."""
    monkeypatch.setattr("ckptkit.core.waiting.time", SimpleNamespace(monotonic=(clock := Clock(lambda: 0.0))))
    seconds_left, left = countdown(timedelta(seconds=60)), []
    for seconds in (0, 59, 1, 40):
        clock.wait(seconds)
        left.append(seconds_left())
    assert left == [60, 1, 0, 0]
    assert countdown(None)() == float("inf")
