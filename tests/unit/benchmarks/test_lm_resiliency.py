"""`benchmarks/lm_resiliency.md` has all 21 faults, each with tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "benchmarks/lm_resiliency.md"


def test_each_fault_names_tests_that_exist():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len({row.split("`")[1] for row in rows}) == len(rows) == 21
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named, row
        for path, name in named:
            assert f"\ndef {name}(" in (TESTS / path).read_text(), (path, name)
