"""The doctor finds planted defects, those that no reading of code can see, and calls no sound job inexact.

`python -m benchmarks.verdicts --count 100` asks the same of more scripts.
"""

from __future__ import annotations

import pytest

from benchmarks.verdicts.__main__ import verdict_of
from benchmarks.verdicts.scripts import FOLDERS, chosen, known_scripts

PLANTED = [one for one in known_scripts() if one.path.parent == FOLDERS[1]]
OTHERS = [one for one in known_scripts() if one.path.parent == FOLDERS[0]]
SAMPLE = [one for one in chosen(OTHERS, 16, part=5) if not one.differs or one.cause is not None]
# What a loop makes of its data of a forgotten object; an object behind a loop's variable; data that read what the loop
# changes.
NAMED_WRONGLY_ONCE = ("d100_acc_memmap_bank", "i003_nash_cached_alpha", "ae03_ohem_source_weights")
ONCE = [one for one in OTHERS if one.path.stem in NAMED_WRONGLY_ONCE and one not in SAMPLE]


@pytest.mark.extended
@pytest.mark.parametrize("script", [*PLANTED, *SAMPLE, *ONCE], ids=lambda script: script.path.stem)
def test_verdict_is_the_truth_and_names_the_cause(script):
    found = verdict_of(script)
    assert found.is_right, found
    assert found.is_cause_right is not False, found.diagnosis


def test_every_planted_defect_has_a_cause():
    assert len(PLANTED) >= 20
    assert all(one.cause is not None for one in PLANTED if one.differs)
