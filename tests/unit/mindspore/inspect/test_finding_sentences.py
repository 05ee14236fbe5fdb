"""Findings that differ only in their place are told in one sentence."""

from __future__ import annotations

from ckptkit.mindspore.inspect.finding import Finding, sentences

FIX = "Seed it"


def test_findings_of_one_cause_are_told_together():
    found = [Finding("pipeline", f"f.py:{line}", "it draws", FIX, certain=False) for line in (1, 2, 2)]
    found += [Finding("operator", "net.drop", "it draws", FIX), Finding("pipeline", "g.py:1", "it draws", FIX)]
    assert [*sentences(found)] == [
        "The resumed run may not be bit-exact. f.py:1, f.py:2: it draws. Seed it.",
        "The resumed run will not be bit-exact. net.drop, g.py:1: it draws. Seed it.",
    ]


def test_a_sentence_names_eight_places():
    found = [Finding("pipeline", str(place), "it draws", FIX) for place in range(10)]
    assert [*sentences(found)] == [
        "The resumed run will not be bit-exact. 0, 1, 2, 3, 4, 5, 6, 7 and 2 more: it draws. Seed it."
    ]
