"""How verdicts of the doctor are counted, and which scripts are chosen for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.verdicts.scripts import Cause, Script, chosen, known_scripts, read_causes
from benchmarks.verdicts.table import Verdict, line_of, totals

DEFECT = Script(Path("lost.py"), True, Cause(("forgotten-state",), ("rng", "draw")))
SOUND = Script(Path("sound.py"), False, None)


def verdict(script, exact, code="forgotten-state", where="script:rng", cause="it differs"):
    diagnosis = {"code": code, "where": where, "cause": cause} if exact is False else None
    return Verdict(script, exact, diagnosis, "", 1.0)


@pytest.mark.parametrize(
    ("given", "right", "named"),
    [
        (verdict(DEFECT, False), True, True),
        (verdict(DEFECT, False, where="x", cause="draw() gives"), True, True),
        (verdict(DEFECT, False, where="script:loss"), True, False),
        (verdict(DEFECT, False, code="unknown"), True, False),
        (verdict(DEFECT, True), False, False),
        (verdict(DEFECT, None), None, False),
        (verdict(SOUND, True), True, None),
        (verdict(SOUND, False), False, None),
    ],
)
def test_verdict_is_judged_by_the_truth(given, right, named):
    assert (given.is_right, given.is_cause_right) == (right, named)
    assert ("WRONG" in line_of(given)) == (right is False or named is False)


def test_rates_count_each_verdict_once():
    found = [verdict(DEFECT, False), verdict(DEFECT, True), verdict(SOUND, False), verdict(SOUND, None)]
    assert totals(found).splitlines() == [
        "defects called not exact: 1 of 2 (50 %)",
        "defects with a cause rightly named: 1 of 2 (50 %)",
        "sound jobs called inexact: 1 of 2 (50 %)",
        "no verdict: 1 of 4 (25 %)",
    ]


def test_half_of_the_chosen_scripts_are_defective():
    scripts = known_scripts()
    for part in range(3):
        found = chosen(scripts, 20, part=part)
        assert found == chosen(scripts, 20, part=part)
        assert [one.differs for one in found].count(True) == 10
        assert len({one.path for one in found}) == 20
    assert not {*chosen(scripts, 20)} & {*chosen(scripts, 20, part=1)}


def test_every_cause_is_of_a_defective_script():
    defective = {one.path.stem for one in known_scripts() if one.differs}
    assert read_causes().keys() <= defective
    assert len(defective) > 300
