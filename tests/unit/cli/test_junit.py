"""The JUnit files, as readers of CI systems take them."""

from __future__ import annotations

import pytest
from support.junit import read_junit

from ckptkit.cli.errors import WrongUsageError
from ckptkit.cli.examination import Case, prepare, write_junit
from ckptkit.errors import StorageError

CASES = [
    Case("uninterrupted", 2.5),
    Case("killed", 1.25, "failure", "random-operator: net.drop", "cause: it draws\nfix: do not"),
    Case("examination", 0.0, "error", "no data"),
    Case("later", 0.0, "skipped", "an earlier one differs"),
]


def test_file_counts_cases_and_holds_why_they_failed(tmp_path):
    write_junit(tmp_path / "out.xml", "ckptkit doctor", CASES)
    written = read_junit(tmp_path / "out.xml")
    expected = {"tests": "4", "failures": "1", "errors": "1", "skipped": "1", "time": "3.750"}
    assert (written.tag, written.attrib) == ("testsuites", expected)
    (suite,) = written
    assert (suite.tag, suite.attrib) == ("testsuite", {"name": "ckptkit doctor", **expected})
    assert [path.name for path in tmp_path.iterdir()] == ["out.xml"]
    assert (tmp_path / "out.xml").read_text().startswith("<?xml version='1.0' encoding='utf-8'?>")
    assert [case.attrib for case in suite] == [
        {"classname": "ckptkit.doctor", "name": case.name, "time": f"{case.seconds:.3f}"} for case in CASES
    ]
    assert [[child.tag for child in case] for case in suite] == [[], ["failure"], ["error"], ["skipped"]]
    failure, error, skipped = (case[0] for case in suite[1:])
    assert failure.attrib == {"message": "random-operator: net.drop", "type": "random-operator"}
    assert failure.text == "cause: it draws\nfix: do not"
    assert (error.attrib["message"], error.text) == ("no data", "no data")
    assert (skipped.attrib, skipped.text) == ({"message": "an earlier one differs"}, None)


def test_folder_that_went_meanwhile_is_said_in_words(tmp_path):
    with pytest.raises(StorageError, match=r"done, but .*/away/out\.xml could not be written: No such file or dir"):
        write_junit(tmp_path / "away/out.xml", "ckptkit doctor", CASES)


def test_output_of_a_script_is_always_valid_xml(tmp_path):
    """Colours go, and so do control characters; a name that is not UTF-8 is escaped."""
    text = "\x1b[31mred\x1b[0m <&> \x00\x08\ufffe\ud800 \u4e2d\U0001f600\ttab\nline"
    write_junit(tmp_path / "out.xml", "s", [Case("n\x07", 0.0, "error", text, text)])
    (error,) = read_junit(tmp_path / "out.xml").iter("error")
    assert error.text == "red <&> \\ud800 \u4e2d\U0001f600\ttab\nline"


def test_earlier_result_is_removed_before_the_work(tmp_path):
    """A command that is killed leaves none, rather than that of another day."""
    path = tmp_path / "results/deep/out.xml"
    prepare(path, "--junit")
    assert path.parent.is_dir()
    for old in ("<?xml version='1.0'?>", "<testsuites/>"):
        path.write_text(old)
        prepare(path, "--junit")
        assert not path.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        prepare(tmp_path / "file/out.xml", "--junit")
    for text in ("import mindspore\n", "", "<html>"):  # two words in the wrong order must not cost a script
        (tmp_path / "train.py").write_text(text)
        with pytest.raises(WrongUsageError, match="is no earlier result"):
            prepare(tmp_path / "train.py", "--junit")
        assert (tmp_path / "train.py").read_text() == text
    with pytest.raises(WrongUsageError, match="results is a folder; name a file in it"):  # before hours of lives
        prepare(tmp_path / "results", "--card")
