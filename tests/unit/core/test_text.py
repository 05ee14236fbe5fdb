"""What an error says in one line, also an error of a pipeline, which says it below; and what times documents hold."""

from __future__ import annotations

import mindspore.dataset as ds
import pytest

from ckptkit.core.text import is_about_data, message_of, time_in

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


def refuses(image):
    raise ValueError(f"{len(image)} bytes are no picture")


def error_of(dataset):
    with pytest.raises(RuntimeError) as raised:
        next(dataset.create_tuple_iterator(num_epochs=1))
    return message_of(raised.value)


def test_bad_file_is_named(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(b"no picture")
    assert "/1.jpg" in error_of(ds.ImageFolderDataset(str(tmp_path), shuffle=False, decode=True))
    message = error_of(ds.ImageFolderDataset(str(tmp_path), shuffle=False).map(refuses, "image"))
    assert message.startswith("ValueError: 10 bytes are no picture (The corresponding data file is: ")
    assert message.endswith("/1.jpg)")


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
