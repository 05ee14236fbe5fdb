"""What is said of stored, unstored and differing state names it, in few lines."""

from __future__ import annotations

import pytest

from ckptkit.mindspore.observe.message import in_words, named, stored


def test_stored_paths_are_one_line():
    assert stored([f"a{index}" for index in range(11)]).endswith("them: a0, a1, a2, a3, a4, a5, a6, a7 and 3 more")


def test_unstored_paths_are_named_with_why_and_with_lines_to_paste():
    text = named({"worker.mean": "a _thread.lock", "status.json": "file, written and read by the training"})
    assert text.splitlines()[1:3] == [
        "    worker.mean   a _thread.lock",
        "    status.json   file, written and read by the training",
    ]
    assert "Training(ignore=['worker.mean'])" in text
    assert "StateManager(...)" in text
    assert "ckptkit doctor" in text


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ("float 0.5", "NoneType None", "was 0.5, is None"),
        ("str 'a b'", "int 3", "was 'a b', is 3"),
        ("list of 2 str '([], [1, 2])'", "list of 0 str '([], [])'", "was list of 2 str '([], [1, 2])', is list of 0"),
        (f"str {'x' * 99!r}", "bool True", f"was '{'x' * 36}..., is True"),
    ],
)
def test_what_differs_is_told_with_both_values(before, now, words):
    assert words in in_words([], [("limit", before, now)])


def test_what_could_not_be_put_back_is_told_with_why():
    assert in_words([], []) == ""
    lost = [("agent.count", "there is no count in this process")]
    assert in_words(lost, []) == "could not be put back: agent.count (there is no count in this process)"
    both = in_words(lost, [("limit", "int 1", "int 2")])
    assert both.endswith(". differs from the saved run: limit (was 1, is 2)")
