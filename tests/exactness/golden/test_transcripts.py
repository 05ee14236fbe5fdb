"""What canonical lives ask of their storage, leave there, say and return is what it was.

Each difference is one to look at: a call that is gone, a field that is not written, another checkpoint that is taken.
`exactness.golden.transcript` says how to write the transcripts anew where it is meant.
"""

import difflib
from pathlib import Path

import pytest

from exactness.golden.stories import STORIES
from exactness.golden.transcript import HOME, written


@pytest.mark.parametrize("name", STORIES)
def test_canonical_lives_go_as_they_went(name: str, tmp_path: Path) -> None:
    expected = (HOME / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    found = written(STORIES[name], tmp_path).splitlines()
    assert not [*difflib.unified_diff(expected, found, "before", "now", lineterm="", n=2)][:60]


def test_every_transcript_has_a_story() -> None:
    assert {path.stem for path in HOME.glob("*.txt")} == {*STORIES}
