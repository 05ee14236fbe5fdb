"""The soak of all tiers, for a few deaths."""

from __future__ import annotations

from pathlib import Path

import pytest

from multirank.hosts.soak import jobs

pytestmark = pytest.mark.extended


def test_soak(tmp_path: Path) -> None:
    (counts,) = jobs(tmp_path, deaths=3, seed=1277)
    assert counts["deaths"] == 3
    for end in ("killed", "host lost", "both lost"):
        assert counts[f"end: {end}"] == 1
    for trouble in ("none", "neighbour cut", "storage boots"):
        assert counts[f"trouble: {trouble}"] == 1
    assert counts["micro-steps"] > 0
