"""What an error says in one line, also an error of a pipeline, which says it below; and what times documents hold."""

from __future__ import annotations

import mindspore.dataset as ds
import pytest

from ckptkit.core.text import is_about_data, message_of, time_in

RULE = "-" * 66


def pipeline_error(**sections):
    parts = [f"\n{RULE}\n- {name.replace('_', ' ')}: \n{RULE}\n{text}\n" for name, text in sections.items()]
    return RuntimeError("Exception thrown from dataset pipeline. Refer to the sections. \n" + "".join(parts))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("one\ntwo"), "one\ntwo"),
        (ValueError(), ""),
        (ValueError("----------\n- not a section"), "----------\n- not a section"),
        (pipeline_error(Dataset_Pipeline_Error_Message="[ERROR] Invalid image, a.jpg"), "Invalid image, a.jpg"),
        (pipeline_error(Dataset_Pipeline_Error_Message="[ERROR] a worker was killed."), "a worker was killed."),
        (
            pipeline_error(
                Python_Call_Stack="map operation: [PyFunc] failed. The corresponding data file is: /a b/7.jpg. Error "
                "description:\nValueError: Traceback:\n  File\nValueError: bad label",
                Dataset_Pipeline_Error_Message="[ERROR] Execute user Python code failed.",
            ),
            "ValueError: bad label (The corresponding data file is: /a b/7.jpg)",
        ),
        (
            pipeline_error(Python_Call_Stack="Traceback:\n  File\nKeyError: 3", Dataset_Pipeline_Error_Message="x"),
            "KeyError: 3",
        ),
    ],
)
def test_message_names_what_went_wrong(error, message):
    assert message_of(error) == message
    assert is_about_data(error) == (type(error) is RuntimeError and message != "a worker was killed.")


@pytest.fixture
def images(tmp_path):
    """Two files, one of which is no picture."""
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "1.jpg").write_bytes(b"no picture")
    return str(tmp_path / "images")


def refuses(image):
    raise ValueError(f"{len(image)} bytes are no picture")


def error_of(dataset):
    with pytest.raises(RuntimeError) as raised:
        next(dataset.create_tuple_iterator(num_epochs=1))
    return message_of(raised.value)


def test_bad_file_is_named(images):
    decoded = ds.ImageFolderDataset(images, shuffle=False, decode=True)
    assert "/1.jpg" in error_of(decoded)
    message = error_of(ds.ImageFolderDataset(images, shuffle=False).map(refuses, "image"))
    assert message.startswith("ValueError: 10 bytes are no picture (The corresponding data file is: ")
    assert message.endswith("/1.jpg)")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("2030-01-01T12:00:00Z", "2030-01-01T12:00:00+00:00"),
        ("2030-01-01T12:00:00", "2030-01-01T12:00:00+00:00"),
        ("2030-01-01T12:00:00.5+00:00", "2030-01-01T12:00:00.500000+00:00"),
        ("2030-01-01T12:00:00,123456789Z", "2030-01-01T12:00:00.123456+00:00"),
        ("2030-01-01T12:00:00.250000-03:30", "2030-01-01T12:00:00.250000-03:30"),
    ],
)
def test_every_python_reads_the_same_times(text, read):
    at = time_in(text)
    assert at is not None
    assert at.isoformat() == read


@pytest.mark.parametrize("text", ["", "yesterday", "12:00:00.5", "2030-01-01T12:00:00."])
def test_what_is_no_time_is_none(text):
    assert time_in(text) is None
